// What a prefill's kernels have of Hopper (sm_90a), beside gated_delta_verify's primitives: bulk copies, barriers and products, instruction
// by instruction. tests/support/prefill_on_cpu.hpp says the same in C++.
typedef unsigned long long u64;

__device__ __forceinline__ void make_barrier(u32 at, int arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory"); }
__device__ __forceinline__ void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(u32 at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); }
__device__ __forceinline__ void expect_bytes(u32 at, int bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory"); }
__device__ __forceinline__ void await(u32 at, u32 parity) {
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra AGAIN; }" ::"r"(at), "r"(parity) : "memory");
}
__device__ __forceinline__ void bring(u32 to, const char* from, int bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
__device__ __forceinline__ void send(char* to, u32 from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void await_sent() {  // shared memory has been read; the grid ends when all is written
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Before a barrier, by every thread that wrote to shared memory what the copy engine or the tensor cores read behind it.
__device__ __forceinline__ void show_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void await_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }
__device__ __forceinline__ void is_there(float& sum) { asm volatile("" : "+f"(sum)::"memory"); }  // not read before this

// Four 8x8 matrices of 16-bit numbers that a warp holds as `load_matrices` gives them, to shared memory, transposed.
__device__ __forceinline__ void store_transposed(u32 row, u32 m0, u32 m1, u32 m2, u32 m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(m0), "r"(m1), "r"(m2), "r"(m3) : "memory");
}
