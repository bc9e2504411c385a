// What the kernels over 8-bit codes share, after the prelude of low_bit_linear: tiled weights as bytes of the codes' type.
//
// A lane's four bytes of a register are the inputs 16 step + 8 p + 2 c + e in the order e, p, as quantise_rows puts those of x.

// mma.sync widens e4m3 to fp16 on Hopper, one number of each operand at a time: better said so, with weights decoded to fp16.
#ifndef WGMMA
#define WGMMA 0
#endif
#define WIDENED (FP8 && !WGMMA && __CUDA_ARCH__ == 900)

// What a decoded weight is a multiple of: int8 has 16 times a symmetric 4-bit weight; an e4m3 byte below 16 counts units of 2^-9.
#define CODE_UNIT (WIDENED ? 1.0f : FP8 ? 512.0f : BITS == 4 && !ZEROS ? 0.0625f : 1.0f)

// Four codes in the low halves of bytes, less their zero point in each byte of z.
__device__ __forceinline__ u32 centred(u32 word, u32 z) {
#if FP8 && !ZEROS
  const u32 negative = ~word & 0x08080808u, one = negative >> 3;  // of -8 ... -1, whose size is the other three bits reversed plus one
  return ((word & 0x07070707u) ^ (negative - one)) + one * 0x81u;
#elif FP8
  const u32 less = (word & 0x0F0F0F0Fu | 0x80808080u) - z, negative = ~less & 0x80808080u, one = negative >> 7;
  return ((less & 0x7F7F7F7Fu) ^ (negative - one)) + one * 0x81u;
#elif ZEROS
  return (word & 0x0F0F0F0Fu | 0x80808080u) - z ^ 0x80808080u;
#else
  return (word << 4 ^ 0x88888888u) & 0xF0F0F0F0u;
#endif
}

// One A fragment of 32 inputs from a lane's vectors. points: the zero points of rows g and g + 8 in a byte's low and high half.
__device__ __forceinline__ void decode_codes(u32 (&a)[4], const uint4* vectors, int step, u32 points) {
#if BITS == 4
  const uint4 v = vectors[step / 2];
  const u32 w[2] = {step % 2 ? v.z : v.x, step % 2 ? v.w : v.y};
#pragma unroll
  for (int i = 0; i < 4; i++) {
#if FP8 || ZEROS
    a[i] = centred(i % 2 ? w[i / 2] >> 4 : w[i / 2], (i % 2 ? points >> 4 : points & 15) * 0x01010101u);
#else
    a[i] = i % 2 ? (w[i / 2] ^ 0x88888888u) & 0xF0F0F0F0u : centred(w[i / 2], 0);
#endif
  }
#else
  const uint4 v = vectors[step];
  a[0] = __byte_perm(v.x, v.y, 0x6240), a[1] = __byte_perm(v.x, v.y, 0x7351);
  a[2] = __byte_perm(v.z, v.w, 0x6240), a[3] = __byte_perm(v.z, v.w, 0x7351);
#endif
}

#define WHOLE (GROUP == 0 && !FP8)  // integers of a whole row of weights need no other sums than the accumulator's
#if FP8
typedef float Sum;
#else
typedef int Sum;
#endif

#if WIDENED
#define A_REGISTERS 8
struct Columns { u32 pairs[2][2]; };  // of 32 inputs of x: fp16 pairs of both k-steps
__device__ __forceinline__ Columns columns_of(u32 b0, u32 b1) {
  Columns d;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const u32 bytes = __byte_perm(i ? b1 : b0, 0, 0x3120);  // by p, then e
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }"
        : "=r"(d.pairs[i][0]), "=r"(d.pairs[i][1]) : "r"(bytes));
  }
  return d;
}
__device__ __forceinline__ void decode_operand(u32 (&a)[8], const uint4* vectors, int step, u32 points) {
  const uint4 v = vectors[step / 2];
  const u32 w[2] = {step % 2 ? v.z : v.x, step % 2 ? v.w : v.y};
#pragma unroll
  for (int i = 0; i < 8; i++) {  // 1024 + q is 0x6400 | q
    const u32 q = select_or<0x000F000Fu>(w[i / 4] >> 4 * (i % 4), 0x64006400u), z = 0x64006400u | (i % 2 ? points >> 4 : points & 15) * 0x00010001u;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(a[i]) : "r"(q), "r"(z));
  }
}
__device__ __forceinline__ void multiply_codes(float (&d)[4], const u32 (&a)[8], const Columns& b) {
#pragma unroll
  for (int i = 0; i < 2; i++)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[4 * i]), "r"(a[4 * i + 1]), "r"(a[4 * i + 2]), "r"(a[4 * i + 3]), "r"(b.pairs[i][0]), "r"(b.pairs[i][1]));
}
#else
#define A_REGISTERS 4
struct Columns { u32 bytes[2]; };
__device__ __forceinline__ Columns columns_of(u32 b0, u32 b1) { return {{b0, b1}}; }
__device__ __forceinline__ void decode_operand(u32 (&a)[4], const uint4* vectors, int step, u32 points) { decode_codes(a, vectors, step, points); }
__device__ __forceinline__ void multiply_codes(Sum (&d)[4], const u32 (&a)[4], const Columns& b) {
#if FP8
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#else
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
#endif
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.bytes[0]), "r"(b.bytes[1]));
}
#endif
