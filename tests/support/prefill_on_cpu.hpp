// prefill_primitives.cuh and `prefill.products` in C++ for cuda_on_cpu.hpp. Products are done at once where they are begun.
#include "barriers_on_cpu.hpp"

typedef unsigned long long u64;
static u32 shared_address(const void* p) { return (u32)((const char*)p - (const char*)memory); }
static void show_barriers() {}
static void show_writes() {}
static void bring(u32 to, const char* from, int bytes, u32 barrier) {
  aligned(from, 16), memcpy(shared_at(to), from, bytes);
  barrier_at(barrier).bytes -= bytes, barrier_at(barrier).check();
}
static void send(char* to, u32 from, int bytes) { aligned(to, 16), memcpy(to, shared_at(from), bytes); }
static void await_sent() {}

static void begin_products() {}
static void commit_products() {}
template <int PENDING> static void await_products() {}
static void is_there(float&) {}

// A descriptor tells where rows of 128 bytes begin, and how far it is to the next 64 columns and to the next 8 rows.
static float number_at(u64 descriptor, int row, int column) {
  const u32 start = (descriptor & 0x3FFF) << 4, columns = (descriptor >> 16 & 0x3FFF) << 4, rows = (descriptor >> 32 & 0x3FFF) << 4;
  u16 bits;
  memcpy(&bits, shared_at(swizzled_place(start + column / 64 * columns + row / 8 * rows + row % 8 * 128 + column % 64 * 2)), 2);
  return from_half(bits);
}
static void left_rows(float (&numbers)[2][16], const u32 (&a)[4]) {  // rows g and g + 8 of a warp's left operand
  Warp& w = warp();
  memcpy(w.in[lane()], a, sizeof a);
  w.hold(32, [] {});
  for (int r = 0; r < 2; r++)
    for (int k = 0; k < 16; k++) numbers[r][k] = from_half(w.in[lane() / 4 * 4 + k % 8 / 2][r + k / 8 * 2] >> 16 * (k % 2));
  w.hold(32, [] {});
}
template <int NUMBERS> static void add_rows(float (&d)[NUMBERS], const u32 (&a)[4], u64 b, int add) {
  float left[2][16];
  left_rows(left, a);
  for (int i = 0; i < NUMBERS; i++) {
    float sum = add ? d[i] : 0;
    for (int k = 0; k < 16; k++) sum += left[i / 2 % 2][k] * number_at(b, i / 4 * 8 + lane() % 4 * 2 + i % 2, k);
    d[i] = sum;
  }
}
static void add_columns(float (&d)[64], const u32 (&a)[4], u64 b) {
  float left[2][16];
  left_rows(left, a);
  for (int i = 0; i < 64; i++)
    for (int k = 0; k < 16; k++) d[i] += left[i / 2 % 2][k] * number_at(b, k, i / 4 * 8 + lane() % 4 * 2 + i % 2);
}
static void store_transposed(u32 row, u32 m0, u32 m1, u32 m2, u32 m3) {
  Warp& w = warp();
  const u32 matrices[4] = {m0, m1, m2, m3};
  memcpy(w.in[lane()], matrices, sizeof matrices), w.in[lane()][4] = row;
  w.hold(32, [&w] {
    for (int i = 0; i < 4; i++)
      for (int l = 0; l < 32; l++)
        for (int e = 0; e < 2; e++) {
          const u16 bits = w.in[l][i] >> 16 * e;
          memcpy(shared_at(w.in[8 * i + l % 4 * 2 + e][4] + l / 4 * 2), &bits, 2);
        }
  });
}
