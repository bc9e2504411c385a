// Hopper's barriers in shared memory, and its swizzle, in C++ for cuda_on_cpu.hpp.
static char* shared_at(u32 address) { return (char*)memory + address; }
static u32 swizzled_place(u32 address) { return address ^ (address >> 7 & 7) << 4; }

struct Barrier {
  int expected, pending, bytes;
  u32 phase;
  void check() { if (pending == 0 && bytes == 0) phase ^= 1, pending = expected; }
};
static Barrier all_barriers[64];
static Barrier& barrier_at(u32 at) { return all_barriers[at / 8 % 64]; }
static void make_barrier(u32 at, int arrivals) { barrier_at(at) = {arrivals, arrivals, 0, 0}; }
static void arrive(u32 at) { barrier_at(at).pending--, barrier_at(at).check(); }
static void expect_bytes(u32 at, int bytes) { barrier_at(at).bytes += bytes, arrive(at); }
static void await(u32 at, u32 parity) { while (barrier_at(at).phase == parity) take_turns(); }
