// Rows of 16-bit activations as 8-bit codes and one float32 scale each; a block for a row, which stays in registers between its two uses.
//
// Macros: BF16 (activations: 1 bf16, 0 fp16), FP8 (codes: 1 e4m3, 0 int8), THREADS, PIECES (of 16 inputs, a thread's share of a row).
// TILED: 1: the codes lie in the order of layout.py; 0: as the row does. GATED: 1: a row of x is a gate and what it lets through, 2 inputs
// numbers, and silu(gate) times the other, rounded to x's type, is what becomes codes. HALVES: 1: instead of codes, a 256th of
// each, in fp16, and 256 times the scale.
__device__ __forceinline__ float number(u32 pair, int which) {
#if BF16
  return __uint_as_float(which ? pair & 0xFFFF0000u : pair << 16);
#else
  float f;
  asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(f) : "r"(which ? pair >> 16 : pair & 0xFFFF));
  return f;
#endif
}

__device__ __forceinline__ float gated(float gate, float up) { return gate / (1 + __expf(-gate)) * up; }

__device__ __forceinline__ u32 pack2(float low, float high) {  // rounded to x's type
  u32 d;
#if BF16
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
#endif
  return d;
}

__device__ __forceinline__ float larger(float a, float b) {  // NaN if one is
  float d;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
}

#if !FP8
#define MOST 127.5f  // half of the 255 steps between -128 and 127
__device__ __forceinline__ u32 code(float x) {
  int q;
  asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(q) : "f"(fmaxf(x, -127)));
  return q & 255;
}
__device__ __forceinline__ u32 codes(float a, float b) { return code(a) | code(b) << 8; }
#else
#define MOST 448.0f
#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ u32 codes(float a, float b) {
  u16 d;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(b), "f"(a));
  return d;
}
#else
// Normal numbers carry a half unit of their 3-bit mantissa upwards in fp32's bits; below 2^-6 codes count units of 2^-9, which is the
// distance between fp32 neighbours of 2^14.
__device__ __forceinline__ u32 code(float x) {
  const float size = fminf(fabsf(x), 448.0f);
  const u32 bits = __float_as_uint(size);
  const u32 normal = (bits + 0x7FFFF + (bits >> 20 & 1) >> 20) - 960, small = __float_as_uint(size + 16384.0f) - 0x46800000u;
  return __float_as_uint(x) >> 24 & 0x80 | (x != x ? 0x7F : size < 0.015625f ? small : normal);
}
__device__ __forceinline__ u32 codes(float a, float b) { return code(a) | code(b) << 8; }
#endif
#endif

#if HALVES
__device__ __forceinline__ u32 halves(float a, float b) {
#if FP8  // its fields are moved to fp16's places
  const u32 pair = codes(a, b), apart = pair << 8 & 0xFF00u | pair << 16 & 0xFF000000u;
  return apart & 0x80008000u | (apart & 0x7F007F00u) >> 1;
#else
  u32 d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"((signed char)code(b) / 256.0f), "f"((signed char)code(a) / 256.0f));
  return d;
#endif
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) quantise_rows(
    const u16* __restrict__ x, uint4* __restrict__ out, float* __restrict__ scales, int inputs, long long x_stride) {
  __shared__ float largest[THREADS / 32];
  const int row = blockIdx.x, pieces = inputs / 16;
  const uint4* from = (const uint4*)(x + row * x_stride);
  let_next_kernel_start();
  await_previous_kernel();
  uint4 held[PIECES][2];
  float most = 0;
#pragma unroll
  for (int j = 0; j < PIECES; j++) {
    const int piece = threadIdx.x + THREADS * j;
    held[j][0] = held[j][1] = make_uint4(0, 0, 0, 0);
    if (piece < pieces) held[j][0] = __ldg(from + 2 * piece), held[j][1] = __ldg(from + 2 * piece + 1);
#if GATED
    if (piece < pieces) {
      const uint4 up[2] = {__ldg(from + 2 * (pieces + piece)), __ldg(from + 2 * (pieces + piece) + 1)};
      u32* words = (u32*)held[j];
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const u32 other = ((const u32*)up)[i];
        words[i] = pack2(gated(number(words[i], 0), number(other, 0)), gated(number(words[i], 1), number(other, 1)));
      }
    }
#endif
  }
#pragma unroll
  for (int j = 0; j < PIECES; j++) {
    const u32* words = (const u32*)held[j];
#pragma unroll
    for (int i = 0; i < 8; i++) most = larger(most, larger(fabsf(number(words[i], 0)), fabsf(number(words[i], 1))));
  }
#pragma unroll
  for (int i = 16; i; i /= 2) most = larger(most, __shfl_xor_sync(~0u, most, i));
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < THREADS / 32; i++) most = larger(most, largest[i]);
  float scale = __fdiv_rn(most, MOST);
  if (scale == 0) scale = 1.1920928955078125e-7f;
  if (threadIdx.x == 0) scales[row] = HALVES ? 256 * scale : scale;
#pragma unroll
  for (int j = 0; j < PIECES; j++) {
    const int piece = threadIdx.x + THREADS * j;
    if (piece >= pieces) continue;
    const u32* words = (const u32*)held[j];
#if HALVES
    u32 made[8];
#pragma unroll
    for (int i = 0; i < 8; i++) made[i] = halves(__fdiv_rn(number(words[i], 0), scale), __fdiv_rn(number(words[i], 1), scale));
    uint4* to = out + 2 * ((long long)row * pieces + piece);
    to[0] = make_uint4(made[0], made[1], made[2], made[3]), to[1] = make_uint4(made[4], made[5], made[6], made[7]);
#else
    u32 made[4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
#if TILED  // a lane's inputs 8 p + 2 c + e of a k-step become neighbours
      const u32 even = codes(__fdiv_rn(number(words[c], 0), scale), __fdiv_rn(number(words[c + 4], 0), scale));
      const u32 odd = codes(__fdiv_rn(number(words[c], 1), scale), __fdiv_rn(number(words[c + 4], 1), scale));
#else
      const u32 even = codes(__fdiv_rn(number(words[2 * c], 0), scale), __fdiv_rn(number(words[2 * c], 1), scale));
      const u32 odd = codes(__fdiv_rn(number(words[2 * c + 1], 0), scale), __fdiv_rn(number(words[2 * c + 1], 1), scale));
#endif
      made[c] = even | odd << 16;
    }
#if TILED
    const long long at = (((long long)(row / 64) * (inputs / 128) + piece / 8) * 64 + row % 64) * 8 + (piece % 8 ^ row % 8);
#else
    const long long at = (long long)row * pieces + piece;
#endif
    out[at] = make_uint4(made[0], made[1], made[2], made[3]);
#endif
  }
}
