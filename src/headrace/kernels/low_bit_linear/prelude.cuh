// What the kernels over tiled weights share. It follows primitives.cuh; layout.py says what the tiles are.
//
// Macros that the host defines: BF16 (activations: 1 bf16, 0 fp16), SCALE_BF16 (the same of the scales), BITS (4 or 8), GROUP
// (inputs that share a scale: 32, 64, 128, or 0: all of a row), ZEROS (1: a zero point for each group).

#define CHUNK 128                      // inputs of a step
#define VECTORS (BITS / 2)             // 16-byte vectors of a lane for one tile of 16 rows and CHUNK inputs
#define GROUPS (GROUP ? CHUNK / GROUP : 0)
#define STEPS 8                        // mma k-steps of a chunk
#define GROUP_STEPS (GROUP ? GROUP / 16 : STEPS)

// Flags by which blocks hand over what they wrote; the one who waits lowers them.
__device__ __forceinline__ void raise(u32* flag) {
  asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
}
__device__ __forceinline__ void await_and_lower(u32* flag) {
  u32 up;
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(up) : "l"(flag) : "memory");
  while (!up);
  *flag = 0;
}

__device__ __forceinline__ u32 as_bits(float x) { return __float_as_uint(x); }

__device__ __forceinline__ u32 subtract2(u32 a, u32 b) {  // exact on the small integers that it is used for
  u32 d;
#if BF16
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(b), "r"(0xBF80BF80u), "r"(a));
#else
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#endif
  return d;
}

__device__ __forceinline__ u32 multiply2(u32 a, u32 b) {
  u32 d;
#if BF16
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
#else
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#endif
  return d;
}

__device__ __forceinline__ u32 pack2(float low, float high) {  // two floats rounded to the activations' type
  u32 d;
#if BF16
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
#endif
  return d;
}

__device__ __forceinline__ float half_to_float(u32 bits) {
  float f;
  asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(f) : "r"(bits));
  return f;
}
__device__ __forceinline__ float low_number(u32 pair, bool bf16) { return bf16 ? __uint_as_float(pair << 16) : half_to_float(pair & 0xFFFF); }
__device__ __forceinline__ float high_number(u32 pair, bool bf16) { return bf16 ? __uint_as_float(pair & 0xFFFF0000) : half_to_float(pair >> 16); }

__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if BF16
#define TYPE "bf16"
#else
#define TYPE "f16"
#endif
  asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 matrices of 16-bit numbers from shared memory: two steps of B. Each lane names a row of one.
__device__ __forceinline__ void load_matrices(u32 (&b)[4], const uint4* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(shared_address(row)) : "memory");
}

// In bf16 128 + q is 0x4300 | q for q < 128; in fp16 1024 + q is 0x6400 | q for q < 1024.
#define MAGIC (BF16 ? 0x43004300u : 0x64006400u)

// Zero points of rows g and g + 8 as numbers to subtract, from their byte (low and high nibble).
__device__ __forceinline__ void zero_points(u32 (&z)[2], u32 byte) {
  z[0] = MAGIC | (byte & 15) * 0x00010001u;
  z[1] = MAGIC | (byte >> 4 & 15) * 0x00010001u;
}

// (word & mask) | bits in one instruction, which the compiler makes two of when both are constants.
template <u32 MASK> __device__ __forceinline__ u32 select_or(u32 word, u32 bits) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(word), "n"(MASK), "r"(bits));
  return d;
}

// One k-step's A fragment from the lane's vector that has it: 16 weights minus their zero points, exact in the activations' type.
__device__ __forceinline__ void decode(u32 (&a)[4], uint4 v, int step, const u32 (&z)[2]) {
#if BITS == 4
  u32 w = step % 4 == 0 ? v.x : step % 4 == 1 ? v.y : step % 4 == 2 ? v.z : v.w;
#pragma unroll
  for (int i = 0; i < 4; i++) a[i] = subtract2(select_or<0x000F000Fu>(w >> 4 * i, MAGIC), z[i & 1]);
#else
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 w = i < 2 ? (step % 2 ? v.z : v.x) : (step % 2 ? v.w : v.y);
    w = i % 2 ? w >> 8 : w;
#if BF16  // the sign bit of a byte stands for -128, and 0x4380 is 256
    a[i] = subtract2(select_or<0x007F007Fu>(w, MAGIC), select_or<0x00800080u>(w, MAGIC));
#else
    a[i] = subtract2(select_or<0x00FF00FFu>(w ^ 0x00800080u, MAGIC), 0x64806480u);
#endif
  }
#endif
}
__device__ __forceinline__ void decode(u32 (&a)[4], const uint4* vectors, int step, const u32 (&z)[2]) {
  decode(a, vectors[step * BITS / 16], step, z);
}

__device__ __forceinline__ void symmetric_points(u32 (&z)[2]) { z[0] = z[1] = MAGIC | 0x00080008u; }

#ifdef PARTS
// Four outputs' sums of a row: scaled, if a row has one scale, and stored, or kept for sum_parts in float32 [parts, rows, outputs].
__device__ __forceinline__ void store_sums(float4 v, void* y, const u32* scale, int row, int output, int rows, int outputs) {
  if (!GROUP) {
    const uint4 s = __ldg((const uint4*)(scale + output / 16 * 8 + output % 8));
    const bool upper = output % 16 >= 8;
    v.x *= upper ? high_number(s.x, SCALE_BF16) : low_number(s.x, SCALE_BF16);
    v.y *= upper ? high_number(s.y, SCALE_BF16) : low_number(s.y, SCALE_BF16);
    v.z *= upper ? high_number(s.z, SCALE_BF16) : low_number(s.z, SCALE_BF16);
    v.w *= upper ? high_number(s.w, SCALE_BF16) : low_number(s.w, SCALE_BF16);
  }
  const long long at = (long long)row * outputs + output;
  if (PARTS)
    *(float4*)((float*)y + (long long)blockIdx.z * rows * outputs + at) = v;
  else
    *(uint2*)((u16*)y + at) = make_uint2(pack2(v.x, v.y), pack2(v.z, v.w));
}
#endif
