// What low_bit_linear's prelude.cuh does in assembly, in C++ for cuda_on_cpu.hpp: for fp16 activations, one block after the other.
static Place gridDim;
#define launch(columns, rows, ...) (gridDim = {columns, rows, 1}, launch(columns, rows, __VA_ARGS__))
static u32 half_of(u32 pair, int i) { return pair >> 16 * i & 0xFFFF; }
static u32 subtract2(u32 a, u32 b) { return pack_half(from_half(half_of(a, 0)) - from_half(half_of(b, 0)), from_half(half_of(a, 1)) - from_half(half_of(b, 1))); }
static u32 multiply2(u32 a, u32 b) { return pack_half(from_half(half_of(a, 0)) * from_half(half_of(b, 0)), from_half(half_of(a, 1)) * from_half(half_of(b, 1))); }
static u32 add_product2(u32 a, u32 b, u32 c) {  // rounded twice
  float sum[2];
  for (int i = 0; i < 2; i++) sum[i] = from_half(half_of(a, i)) * from_half(half_of(b, i)) + from_half(half_of(c, i));
  return pack_half(sum[0], sum[1]);
}
static u32 fma_halves(u32 a, u32 b, u32 c) { return add_product2(a, b, c); }
static u32 pack_halves(float low, float high) { return pack_half(low, high); }
static float2 halves_of(u32 pair) { return {low_half(pair), high_half(pair)}; }
static void mma_in_halves(u32 (&d)[2], const u32 (&a)[4], u32 b0, u32 b1, bool first) {
  float sums[4] = {low_half(d[0]), high_half(d[0]), low_half(d[1]), high_half(d[1])}, none[4] = {};
  float(&into)[4] = first ? none : sums;
  mma(into, a, b0, b1);
  d[0] = pack_half(into[0], into[1]), d[1] = pack_half(into[2], into[3]);
}
static u32 both_low(u32 pair) { return half_of(pair, 0) * 0x10001; }
static u32 both_high(u32 pair) { return half_of(pair, 1) * 0x10001; }
static u32 pack2(float low, float high) { return pack_half(low, high); }
static float half_to_float(u32 bits) { return from_half(bits); }
template <u32 MASK> static u32 select_or(u32 word, u32 bits) { return word & MASK | bits; }
static void load_b(u32 (&b)[4], const void* row) { load_matrices(b, row); }
static void commit_copies() {}
template <int PENDING> static void await_copies() {}
static void raise(u32* flag) { *flag = 1; }
static void await_and_lower(u32* flag) {
  if (*flag != 1) fail("a block waits for one that comes later");
  *flag = 0;
}
template <class T> static T __ldg(const T* from) { return *from; }
template <class T> static T __ldcg(const T* from) { return *from; }
#define __expf(x) expf(x)
#define __cvta_generic_to_shared(p) (size_t)(p)
static void __stcg(float4* to, float4 value) { *to = value; }
static void __stcg(uint4* to, uint4 value) { *to = value; }
static uint4 look(const float4* at) {
  uint4 v;
  memcpy(&v, at, sizeof v);
  if (v.x == 0xFFFFFFFF) fail("a block waits for one that comes later");
  return v;
}
static u32 from_lane_bits(u32 bits, int source) { return __float_as_uint(from_lane(__uint_as_float(bits), source)); }
static u32 __shfl_xor_sync(u32, u32 x, int mask) { return from_lane_bits(x, lane() ^ mask); }
static u32 transpose(u32 a) {
  const int row = lane() / 4, column = lane() % 4 * 2;
  const u32 first = from_lane_bits(a, column * 4 + row / 2), second = from_lane_bits(a, column * 4 + 4 + row / 2);
  return half_of(first, row % 2) | half_of(second, row % 2) << 16;
}
