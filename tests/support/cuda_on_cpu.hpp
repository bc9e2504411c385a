// Enough of CUDA in C++ to run a kernel of BLOCK_THREADS threads a block on a CPU, block after block: threads are fibers, which
// take turns wherever CUDA's threads wait for each other, and the primitives of gated_delta_verify are plain loops over a warp.
//
// It finds wrong indices, formulas and alignments, and barriers that not all threads come to; not races.

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#ifndef BLOCK_THREADS
#define BLOCK_THREADS 256
#endif
#ifndef BACKWARDS  // 1: the last block of a row runs first
#define BACKWARDS 0
#endif
#define __device__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

typedef unsigned int u32;
typedef unsigned short u16;
struct alignas(8) uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
static uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
static uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Threads.
struct Place { int x, y, z; };
struct Fiber {
  ucontext_t context;
  Place place;
  bool done;
  char stack[1 << 16];
};
static const int BLOCK = BLOCK_THREADS;
static Fiber fibers[BLOCK], *current;
static ucontext_t scheduler;
static Place blockIdx;
static std::function<void()> body;
static uint4 memory[1 << 14];  // dynamic shared memory
#define threadIdx (current->place)

static void fail(const char* why) { fprintf(stderr, "cuda_on_cpu: %s\n", why), abort(); }
static void take_turns() { swapcontext(&current->context, &scheduler); }

// What `members` threads wait for together; the last to come does `work`.
struct Meeting {
  int arrived = 0;
  long held = 0;
  template <class Work> void hold(int members, Work work) {
    const long mine = held;
    if (++arrived == members) work(), arrived = 0, held++;
    else
      while (held == mine) take_turns();
  }
};
struct Warp : Meeting {
  u32 in[32][10], out[32][4];
  const u16* rows[32];
};
static Meeting everybody;
static Warp warps[BLOCK / 32];
static Warp& warp() { return warps[threadIdx.x / 32]; }
static int lane() { return threadIdx.x % 32; }
static void __syncthreads() { everybody.hold(BLOCK, [] {}); }
static void __syncwarp() { warp().hold(32, [] {}); }

static void enter() {
  body();
  current->done = true;
  for (;;) take_turns();
}
static void run_block() {
  for (int t = 0; t < BLOCK; t++) {
    Fiber& fiber = fibers[t];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack, fiber.context.uc_stack.ss_size = sizeof fiber.stack, fiber.context.uc_link = nullptr;
    fiber.place = {t, 0, 0}, fiber.done = false;
    makecontext(&fiber.context, enter, 0);
  }
  for (long turns = 0, left = BLOCK; left;) {
    if (++turns > 1000000) fail("threads wait for each other in vain");
    left = 0;
    for (Fiber& fiber : fibers)
      if (!fiber.done) current = &fiber, swapcontext(&scheduler, &fiber.context), left += !fiber.done;
  }
}
static void launch(int columns, int rows, std::function<void()> kernel) {
  body = kernel;
  for (int y = 0; y < rows; y++)
    for (int i = 0; i < columns; i++)
      blockIdx = {BACKWARDS ? columns - 1 - i : i, y, 0}, memset(memory, 0xFF, sizeof memory), run_block();
}

// Numbers.
static float __uint_as_float(u32 bits) { float f; memcpy(&f, &bits, 4); return f; }
static u32 __float_as_uint(float f) { u32 bits; memcpy(&bits, &f, 4); return bits; }
static float from_half(u32 bits) { _Float16 h; u16 low = (u16)bits; memcpy(&h, &low, 2); return (float)h; }
static u32 to_half(float f) { _Float16 h = (_Float16)f; u16 bits; memcpy(&bits, &h, 2); return bits; }
static u32 to_bfloat(float f) { u32 bits = __float_as_uint(f); return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16; }
static u32 pack_half(float low, float high) { return to_half(low) | to_half(high) << 16; }
static u32 pack_bfloat(float low, float high) { return to_bfloat(low) | to_bfloat(high) << 16; }
static float low_half(u32 pair) { return from_half(pair); }
static float high_half(u32 pair) { return from_half(pair >> 16); }
static u32 __byte_perm(u32 x, u32 y, u32 selector) {
  const unsigned long long both = (unsigned long long)y << 32 | x;
  u32 d = 0;
  for (int i = 0; i < 4; i++) d |= (u32)(both >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
  return d;
}
static float exponential(float x) { return expf(x); }
static float reciprocal(float x) { return 1.0f / x; }
static float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static float log_of(float x) { return logf(x); }
using std::max;
using std::min;
#define __logf log_of

// Memory.
static void let_next_kernel_start() {}
static void await_previous_kernel() {}
static void await_copies() {}
template <class T> static T load_now(const T* from) { return *from; }
static void prefetch(const void*) {}
static void aligned(const void* p, int bytes) { if ((size_t)p % bytes) fail("address not aligned"); }
template <int BYTES> static void copy_async(void* to, const void* from, bool valid = true) {
  aligned(to, BYTES), aligned(from, BYTES);
  valid ? memcpy(to, from, BYTES) : memset(to, 0, BYTES);
}
template <class T> static void made(T*&) {}
static u16 load_number_early(const u16* from) { return *from; }
static uint2 load_pair_early(const void* from) { aligned(from, 8); return *(const uint2*)from; }
static uint4 load_early(const void* from) { aligned(from, 16); return *(const uint4*)from; }
static u32 atomicInc(u32* counter, u32 last) { const u32 before = *counter; *counter = before >= last ? 0 : before + 1; return before; }

// Warps.
static float from_lane(float x, int source) {
  Warp& w = warp();
  w.in[lane()][0] = __float_as_uint(x), w.in[lane()][1] = (u32)source;
  w.hold(32, [&w] { for (int l = 0; l < 32; l++) w.out[l][0] = w.in[w.in[l][1]][0]; });
  return __uint_as_float(w.out[lane()][0]);
}
static float __shfl_sync(u32, float x, int source) { return from_lane(x, source); }
static float __shfl_xor_sync(u32, float x, int mask) { return from_lane(x, lane() ^ mask); }
static float __shfl_up_sync(u32, float x, int back) { return from_lane(x, lane() >= back ? lane() - back : lane()); }

static void matrices(u32 (&m)[4], const void* row, bool transposed) {
  Warp& w = warp();
  aligned(row, 16);
  w.rows[lane()] = (const u16*)row;
  w.hold(32, [&w, transposed] {
    for (int i = 0; i < 4; i++)
      for (int l = 0; l < 32; l++) {
        const int g = l / 4, c = l % 4 * 2;
        const u16* const* rows = w.rows + 8 * i;
        w.out[l][i] = transposed ? rows[c][g] | (u32)rows[c + 1][g] << 16 : rows[g][c] | (u32)rows[g][c + 1] << 16;
      }
  });
  memcpy(m, w.out[lane()], sizeof m);
}
static void load_matrices(u32 (&m)[4], const void* row) { matrices(m, row, false); }
static void load_transposed(u32 (&m)[4], const void* row) { matrices(m, row, true); }
static void load_transposed(u32 (&m)[2], const void* row) {
  u32 all[4];
  matrices(all, row, true), m[0] = all[0], m[1] = all[1];
}

static void multiply_fragments(Warp& w) {
  float a[16][16], b[16][8];
  for (int l = 0; l < 32; l++)
    for (int i = 0; i < 6; i++)
      for (int e = 0; e < 2; e++) {
        const float x = from_half(w.in[l][4 + i] >> 16 * e);
        const int g = l / 4, c = l % 4 * 2 + e;
        if (i < 4) a[g + i % 2 * 8][c + i / 2 * 8] = x;
        else b[c + i % 2 * 8][g] = x;
      }
  for (int l = 0; l < 32; l++)
    for (int e = 0; e < 4; e++) {
      float sum = __uint_as_float(w.in[l][e]);
      for (int k = 0; k < 16; k++) sum += a[l / 4 + e / 2 * 8][k] * b[k][l % 4 * 2 + e % 2];
      w.out[l][e] = __float_as_uint(sum);
    }
}
static void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  Warp& w = warp();
  memcpy(w.in[lane()], d, sizeof d), memcpy(w.in[lane()] + 4, a, sizeof a), w.in[lane()][8] = b0, w.in[lane()][9] = b1;
  w.hold(32, [&w] { multiply_fragments(w); });
  memcpy(d, w.out[lane()], sizeof d);
}
static void mma(float (&d)[4], const u32 (&a)[2], u32 b) { mma(d, {a[0], a[1], 0, 0}, b, 0); }
