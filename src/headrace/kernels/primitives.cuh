// What the CUDA kernels are written in: early starts, and copies that go on while a thread does something else.
//
// C++ for NVRTC, without any header.

typedef unsigned int u32;
typedef unsigned short u16;

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

template <int BYTES> __device__ __forceinline__ void copy_async(void* to, const void* from, bool valid = true) {
  int bytes = valid ? BYTES : 0;  // the rest is filled with zeros
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(BYTES), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }
__device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }  // committed or not

// A kernel may start while the one before it still runs, until it asks for that one's results.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void await_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
