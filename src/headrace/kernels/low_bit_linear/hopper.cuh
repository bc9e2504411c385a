// What hopper_rows is made of: a stage of its ring, barriers, the copy engine, tensor cores. Macros: hopper_rows.cu.

#define WARPS (4 * WARPGROUPS)
#define BLOCKS (BLOCK_ROWS / 8)  // of 8 rows, in a thread's sums
#define PART_STEPS (STEPS / PARTS_OF_CHUNK)
#define PART_VECTORS (VECTORS / PARTS_OF_CHUNK)
#define PART_GROUPS (GROUP && GROUP < 16 * PART_STEPS ? 16 * PART_STEPS / GROUP : 1)
#define GROUP_INPUTS (GROUP ? GROUP : CHUNK)
#define HALF_X_BYTES (BLOCK_ROWS * 128)    // 64 inputs, what a row of the swizzle has
#define WEIGHT_BYTES (16 * CHUNK * BITS / 8)  // of a warp and stage
#define SCALE_BYTES (32 * GROUPS)
#define BLOCK_TILES (TILES * WARPS)
#define SECOND_TILE (GATED ? tiles / 2 : WARPS)  // of a warp, from its first
#define HALVES (GATED + 1)
#define SUMS (BLOCK_ROWS / 2)          // of a thread and tile
#define WEIGHTS_AT (2 * HALF_X_BYTES)  // in a stage
#define SCALES_AT (WEIGHTS_AT + BLOCK_TILES * WEIGHT_BYTES)
#define FULL_AT (SCALES_AT + BLOCK_TILES * SCALE_BYTES)  // its barriers
#define EMPTY_AT (FULL_AT + 8)
#define STAGE_BYTES ((EMPTY_AT + 8 + 1023) / 1024 * 1024)
#define THREADS (32 * WARPS + 128)  // registers change hands between groups of 4 warps: one of the last copies
#define FREE_REGISTERS (65536 / (RESIDENT * THREADS) - (ADDED + TILES) * SUMS - 28)  // while sums come together
#define FACTORS_MADE 1  // a barrier

typedef unsigned long long u64;
struct alignas(64) TensorMap { u64 words[16]; };

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void await_products() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

__device__ __forceinline__ void await_phase(u32 barrier, u32 phase) {
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra DONE; bra AGAIN; DONE: }"
               ::"r"(barrier), "r"(phase) : "memory");
}
__device__ __forceinline__ uint4 load_vector(u32 at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}
__device__ __forceinline__ u32 load_word(u32 at) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
__device__ __forceinline__ void expect_bytes(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
__device__ __forceinline__ void prefetch(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
__device__ __forceinline__ void copy_box(u32 to, const TensorMap* map, int x, int y, u32 barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(barrier) : "memory");
}
__device__ __forceinline__ void copy_box(u32 to, const TensorMap* map, int x, int y, int z, u32 barrier, u64 policy) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;"
               ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "l"(policy) : "memory");
}

__device__ __forceinline__ void await_multipliers() { asm volatile("bar.sync 2, %0;" ::"n"(32 * WARPS) : "memory"); }  // all warps that multiply
__device__ __forceinline__ void barrier_arrive(int barrier) { asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(THREADS - 32) : "memory"); }
__device__ __forceinline__ void barrier_wait(int barrier) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(THREADS - 32) : "memory"); }

// Factors of a norm's rows, by `warps` warps of which this is one: each lane has a row.
__device__ __forceinline__ void factors_of_rows(float* factors, const Normed& normed, int rows, int inputs, int warp, int warps) {
  for (int r = warp * 32 + threadIdx.x % 32; r < rows; r += warps * 32) {
    float sum = 0;
#pragma unroll 10
    for (int i = 0; i < normed.squares.count; i++) sum += __ldcg(normed.squares.at(r, i));
    factors[r] = rsqrtf(sum / inputs + normed.eps);
  }
}
// With NORMED, by a norm's factors: sums of the block's rows 8 block ... 8 block + 7.
__device__ __forceinline__ float4 with_factors(float4 sum, const float* factors, int block) {
  if (!NORMED) return sum;
  const float2 factor = *(const float2*)(factors + block * 8 + threadIdx.x % 4 * 2);
  return make_float4(sum.x * factor.x, sum.y * factor.y, sum.z * factor.x, sum.w * factor.y);
}
