// Rows of x for ampere_rows: fp16, each times a power of two such that no sum of 128 products overflows, and what its sums are multiplied by
// in return. A block for a row, which stays in registers between its two uses. Macros: THREADS, PIECES (of 8 numbers, a thread's).
#define TOP (BITS == 4 ? 14 : 1)   // numbers become less than 2^TOP: weights of 4 bits are at most 15 2^-9, of 8 bits 128
#define UNIT_POWER (BITS == 4 ? 9 : 0)

__device__ __forceinline__ u32 pack_halves(float low, float high) {
  u32 d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

extern "C" __global__ void __launch_bounds__(THREADS) halves(
    const u16* __restrict__ x, uint4* __restrict__ out, float* __restrict__ units, int inputs, long long x_stride) {
  __shared__ float largest[THREADS / 32];
  const int row = blockIdx.x, pieces = inputs / 8;
  const uint4* const from = (const uint4*)(x + row * x_stride);
  let_next_kernel_start();
  await_previous_kernel();
  uint4 held[PIECES];
  float most = 0;
#pragma unroll
  for (int j = 0; j < PIECES; j++) {
    const int piece = threadIdx.x + THREADS * j;
    held[j] = piece < pieces ? __ldg(from + piece) : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int j = 0; j < PIECES; j++) {
    const u32 words[4] = {held[j].x, held[j].y, held[j].z, held[j].w};
#pragma unroll
    for (int i = 0; i < 4; i++) most = fmaxf(most, fmaxf(fabsf(low_number(words[i], BF16)), fabsf(high_number(words[i], BF16))));
  }
#pragma unroll
  for (int i = 16; i; i /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, i));
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < THREADS / 32; i++) most = fmaxf(most, largest[i]);
  const int exponent = min(max((int)(as_bits(most) >> 23), 16), 252 + TOP);  // of the largest number; all powers below are normal numbers
  const float power = __uint_as_float(TOP + 253 - exponent << 23);
  if (threadIdx.x == 0) units[row] = __uint_as_float(exponent + 1 - TOP + UNIT_POWER << 23);
#pragma unroll
  for (int j = 0; j < PIECES; j++) {
    const int piece = threadIdx.x + THREADS * j;
    const u32 words[4] = {held[j].x, held[j].y, held[j].z, held[j].w};
    u32 made[4];
#pragma unroll
    for (int i = 0; i < 4; i++) made[i] = pack_halves(low_number(words[i], BF16) * power, high_number(words[i], BF16) * power);
    if (piece < pieces) out[(long long)row * pieces + piece] = make_uint4(made[0], made[1], made[2], made[3]);
  }
}
