// What kernels of the gated delta rule are written in, after kernels/primitives.cuh: loads, fragments and products of a warp, and
// conversions, instruction by instruction. tests/support/cuda_on_cpu.hpp says the same in C++, so that the rest can be run without
// a GPU.

// Volatile, so that it is issued where it stands: long before its use, and not before the kernels before have finished.
__device__ __forceinline__ uint4 load_early(const void* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ u16 load_number_early(const u16* from) {
  u16 v;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ uint2 load_pair_early(const void* from) {
  uint2 v;
  asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
  return v;
}

// From the second cache, where what other kernels write is seen, before and after they have finished.
__device__ __forceinline__ int load_now(const int* from) {
  int v;
  asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ long long load_now(const long long* from) {
  long long v;
  asm volatile("ld.global.cg.s64 %0, [%1];" : "=l"(v) : "l"(from) : "memory");
  return v;
}

// An address that is made here, and not where it is used.
template <class T> __device__ __forceinline__ void made(T*& p) { asm volatile("" : "+l"(p)); }

__device__ __forceinline__ void prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Four 8x8 matrices of 16-bit numbers from shared memory; each lane names a row of one. Lane 4g + c gets numbers 2c and 2c + 1
// of row g, or, transposed, of column g.
__device__ __forceinline__ void load_matrices(u32 (&m)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(shared_address(row)) : "memory");
}
__device__ __forceinline__ void load_transposed(u32 (&m)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(shared_address(row)) : "memory");
}
__device__ __forceinline__ void load_transposed(u32 (&m)[2], const void* row) {  // two, named by lanes 0 to 15
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(m[0]), "=r"(m[1]) : "r"(shared_address(row)) : "memory");
}

// d [16, 8] += a [16, 16] b [16, 8]: products of fp16 with fp32 sums. Lane 4g + c has rows g and g + 8, columns 2c and 2c + 1 of d.
__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same of a [16, 8] and b [8, 8].
__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[2], u32 b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
}

__device__ __forceinline__ float exponential(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
  return y;
}
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ u32 pack_half(float low, float high) {
  u32 d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
__device__ __forceinline__ float low_half(u32 pair) {
  float f;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(f) : "r"(pair));
  return f;
}
__device__ __forceinline__ float high_half(u32 pair) {
  float f;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high; }" : "=f"(f) : "r"(pair));
  return f;
}
__device__ __forceinline__ u32 pack_bfloat(float low, float high) {
  u32 d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

