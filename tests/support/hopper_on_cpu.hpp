// What hopper_queries.cu has of Hopper, in C++ for cuda_on_cpu.hpp and attention_on_cpu.hpp: products in fp16, done at once where
// they are begun; the copy engine.
#include "barriers_on_cpu.hpp"

#define __grid_constant__

static Meeting named[16];
static void meet(int barrier, int threads) { named[barrier].hold(threads, [] {}); }

// The copy engine: 16 rows of 128 bytes; a matrix is told by where it begins and the bytes from row to row.
struct Boxes;
static void bring(u32 to, const Boxes* boxes, int column, int row, u32 barrier) {
  const char* from = ((const char* const*)boxes)[0] + (long long)row * ((const long long*)boxes)[1] + 2 * column;
  for (int r = 0; r < 16; r++)
    for (int piece = 0; piece < 8; piece++) memcpy(shared_at(swizzled_place(to + r * 128 + piece * 16)), from + r * ((const long long*)boxes)[1] + piece * 16, 16);
  barrier_at(barrier).bytes -= 2048, barrier_at(barrier).check();
}

// Products. A descriptor tells where rows of 128 bytes begin, and how far it is to the next 64 columns and to the next 8 rows.
static float number_at(u64 descriptor, int row, int column) {
  const u32 start = (descriptor & 0x3FFF) << 4, columns = (descriptor >> 16 & 0x3FFF) << 4, rows = (descriptor >> 32 & 0x3FFF) << 4;
  u16 bits;
  memcpy(&bits, shared_at(swizzled_place(start + column / 64 * columns + row / 8 * rows + row % 8 * 128 + column % 64 * 2)), 2);
  return from_half(bits);
}
static void logits(float (&d)[KEYS / 2], u64 a, u64 b, int step) {
  for (int i = 0; i < KEYS / 2; i++) {
    const int row = threadIdx.x / 32 % 4 * 16 + lane() / 4 + i / 2 % 2 * 8, key = i / 4 * 8 + lane() % 4 * 2 + i % 2;
    float sum = step ? d[i] : 0;
    for (int k = 0; k < 16; k++) sum += number_at(a, row, k) * number_at(b, key, k);
    d[i] = sum;
  }
}
static void sum_up(float (&d)[COLUMNS / 2], const u32 (&a)[4], u64 b) {
  Warp& w = warp();
  memcpy(w.in[lane()], a, sizeof a);
  w.hold(32, [] {});
  float weights[2][16];
  for (int r = 0; r < 2; r++)
    for (int k = 0; k < 16; k++) weights[r][k] = from_half(w.in[lane() / 4 * 4 + k % 8 / 2][r + k / 8 * 2] >> 16 * (k % 2));
  w.hold(32, [] {});
  for (int i = 0; i < COLUMNS / 2; i++)
    for (int k = 0; k < 16; k++) d[i] += weights[i / 2 % 2][k] * number_at(b, k, i / 4 * 8 + lane() % 4 * 2 + i % 2);
}
static void begin_products() {}
static void commit_products() {}
template <int PENDING> static void await_products() {}
static void show_to_tensor_cores() {}

static void multiply2(u32& numbers, u32 by) { numbers = pack_half(low_half(numbers) * low_half(by), high_half(numbers) * high_half(by)); }
static void decode4(u32& low, u32& high, u32 codes) {
  if (KIND == 2) codes ^= 0x80808080u;
  low = decode2<0>(codes), high = decode2<2>(codes);
  if (KIND == 3) multiply2(low, 0x5C005C00u), multiply2(high, 0x5C005C00u);  // by 256
}
#define volatile(...)
#define asm
