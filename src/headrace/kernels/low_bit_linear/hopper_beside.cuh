// With BESIDE the last blocks of hopper_rows make another product of x, of plain weights [outputs, inputs] of few outputs: processors that
// the tiles leave. Each has a part of the inputs, with both operands in shared memory, the weights asked for before the kernel before this
// one is done; the last adds the others' sums, in their order. It follows hopper_rows' definitions.
#define BESIDE_GROUPS (WARPGROUPS < 2 ? 1 : 2)  // warpgroups that multiply, of 64 outputs each
#define HALF_WEIGHT_BYTES (BESIDE_GROUPS * 8192)  // 64 inputs
#define BESIDE_STAGE_BYTES (2 * (HALF_X_BYTES + HALF_WEIGHT_BYTES))
#define BESIDE_STAGES ((STAGES * STAGE_BYTES - 1024) / BESIDE_STAGE_BYTES)
#define BESIDE_BARRIERS_AT (BESIDE_STAGES * BESIDE_STAGE_BYTES)  // of a stage: full, empty

struct Beside {
  u16* y;
  int outputs, parts;
};

struct BesideBlock {
  const Beside& of;
  const TensorMap &x_map, &weight_map;
  u32 ring;
  int begin, end;  // chunks

  __device__ BesideBlock(const Beside& of, const TensorMap& x_map, const TensorMap& weight_map, u32 ring, int part, int chunks)
      : of(of), x_map(x_map), weight_map(weight_map), ring(ring), begin(chunks * part / of.parts), end(chunks * (part + 1) / of.parts) {}
  __device__ u32 stage(int i) const { return ring + i % BESIDE_STAGES * BESIDE_STAGE_BYTES; }
  __device__ u32 full(int i) const { return ring + BESIDE_BARRIERS_AT + i % BESIDE_STAGES * 16; }
  __device__ u32 empty(int i) const { return full(i) + 8; }
  __device__ u32 phase(int i) const { return i / BESIDE_STAGES & 1; }

  __device__ __forceinline__ void copy_weights(int i) const {  // i: chunks from the first
    expect_bytes(full(i), BESIDE_STAGE_BYTES);
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int group = 0; group < BESIDE_GROUPS; group++)
        copy_box(stage(i) + 2 * HALF_X_BYTES + half * HALF_WEIGHT_BYTES + group * 8192, &weight_map, (begin + i) * CHUNK + half * 64,
                 group * 64, full(i));
  }
  __device__ __forceinline__ void copy_x(int i) const {
#pragma unroll
    for (int half = 0; half < 2; half++) copy_box(stage(i) + half * HALF_X_BYTES, &x_map, (begin + i) * CHUNK + half * 64, 0, full(i));
  }
  __device__ __forceinline__ void copy() const {
    prefetch(&x_map), prefetch(&weight_map);
    const int count = end - begin, ahead = min(BESIDE_STAGES, count);
    for (int i = 0; i < ahead; i++) copy_weights(i);
    await_previous_kernel();
    for (int i = 0; i < ahead; i++) copy_x(i);
    for (int i = ahead; i < count; i++) {
      await_phase(empty(i), phase(i) ^ 1);
      copy_weights(i), copy_x(i);
    }
  }
  __device__ __forceinline__ void multiply(float (&total)[SUMS], int group) const {
#pragma unroll
    for (int i = 0; i < SUMS; i++) total[i] = 0;
#pragma unroll 1
    for (int i = 0; i < end - begin; i++) {
      await_phase(full(i), phase(i));
      const u32 x_at = stage(i) >> 4 | 1 << 16, weights_at = x_at + (2 * HALF_X_BYTES + group * 8192) / 16;
      begin_products();
#pragma unroll
      for (int s = 0; s < STEPS; s++)
        multiply_shared(total, weights_at + s / 4 * (HALF_WEIGHT_BYTES / 16) + s % 4 * 2, x_at + s / 4 * (HALF_X_BYTES / 16) + s % 4 * 2);
      commit_products();
      await_products();
      if (threadIdx.x % 32 == 0) arrive(empty(i));
    }
#pragma unroll
    for (int i = 0; i < SUMS; i++) asm volatile("" : "+f"(total[i])::"memory");
  }
};

__device__ __forceinline__ void beside_block(
    u32 ring, const TensorMap& x_map, const TensorMap& weight_map, const Beside& of, const Normed& normed, float* factors, float4* sums,
    int part, int rows, int inputs) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const BesideBlock block(of, x_map, weight_map, ring, part, inputs / CHUNK);
  if (threadIdx.x < BESIDE_STAGES) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(block.full(threadIdx.x)) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(block.empty(threadIdx.x)), "n"(4 * BESIDE_GROUPS) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const bool is_last = part == of.parts - 1;
  if (warp == WARPS && lane == 0) block.copy();
  if (NORMED && is_last && warp > WARPS) {
    await_previous_kernel();
    factors_of_rows(factors, normed, rows, inputs, warp - WARPS - 1, 3);
    barrier_arrive(FACTORS_MADE);
  }
  if (warp >= WARPS) return;
  await_previous_kernel();
  if (warp < 4 * BESIDE_GROUPS) {
    float total[SUMS];
    block.multiply(total, warp / 4);
    float4* const at = sums + warp * BLOCKS * 32 + lane;
    if (!is_last) {
#pragma unroll
      for (int b = 0; b < BLOCKS; b++)
        send(at + (part * WARPS * BLOCKS + b) * 32, total[4 * b], total[4 * b + 1], total[4 * b + 2], total[4 * b + 3]);
      return;
    }
    if (NORMED) barrier_wait(FACTORS_MADE);
    const Target target{of.y, nullptr, rows, of.outputs};
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
      float4 sum = make_float4(0, 0, 0, 0);
      for (int p = 0; p < part; p++) {
        float4* const its = at + (p * WARPS * BLOCKS + b) * 32;
        const float4 v = receive(look(its), its);
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
      }
      __syncwarp();
      sum.x += total[4 * b], sum.y += total[4 * b + 1], sum.z += total[4 * b + 2], sum.w += total[4 * b + 3];
      target.store_as_is(with_factors(sum, factors, b), b * 8, warp);
    }
  } else if (NORMED && is_last) {
    barrier_wait(FACTORS_MADE);
  }
}
