// 17 rows and more on Hopper (sm_90a): y = x W^T by wgmma for BLOCK_ROWS rows of x (its N) and 64 outputs a warpgroup (its M).
//
// The weights are the A operand in registers, decoded and scaled in the activations' type by the warp that owns their tile while the
// product of the half chunk before runs; x is B in shared memory, in rows of 64 numbers with the 128-byte swizzle. The ring has STAGES
// half chunks, of which TOGETHER (1 or 2, a divisor of STAGES) come and go at one barrier.
// blockIdx: block of rows, of outputs, part of the inputs; with PARTS the sums go to float32 [parts, rows, outputs] for sum_parts. Macros:
// BLOCK_ROWS (32, 64, 128, 256), STAGES, TOGETHER, WARPGROUPS, RESIDENT (blocks of a processor), PARTS; `multiply` is written by the host, for an accumulator of BLOCK_ROWS / 2 numbers a thread.
#define AHEAD (STAGES - 2 * TOGETHER)  // half chunks on their way while one is used and one before it may be
#define WARPS (4 * WARPGROUPS)
#define THREADS (32 * WARPS)
#define BLOCK_OUTPUTS (16 * WARPS)
#define PAD (BLOCK_OUTPUTS + 4)     // floats from one row of sums to the next
#define ROWS_AT_ONCE (THREADS / 8)  // of x, in copying
#define HALF (CHUNK / 2)
#define X_VECTORS (BLOCK_ROWS * 8)  // of a stage
#define LANE_VECTORS (VECTORS / 2)
#define LANE_WORDS (GROUP == 32 ? 2 : GROUP ? 1 : 0)  // of scales, of a stage
#define STEPS_OF_WORD (GROUP == 32 ? 2 : 4)

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void await_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }
__device__ __forceinline__ void show_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) hopper_rows(
    const uint4* __restrict__ packed, const u32* __restrict__ scale, const u32* __restrict__ zero, const u16* __restrict__ x,
    void* __restrict__ y, int rows, int outputs, int inputs, long long x_stride) {
  extern __shared__ __align__(1024) uint4 shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int chunks = inputs / CHUNK, tiles = outputs / 16, first_row = blockIdx.x * BLOCK_ROWS;
  const int begin = (long long)chunks * blockIdx.z / gridDim.z * 2, end = (long long)chunks * (blockIdx.z + 1) / gridDim.z * 2;
  const u32 tile = min((int)blockIdx.y * WARPS + warp, tiles - 1) * chunks;

  uint4* ring = shared + STAGES * X_VECTORS + warp * STAGES * LANE_VECTORS * 32 + lane;
  u32* scale_ring = (u32*)(shared + STAGES * (X_VECTORS + WARPS * LANE_VECTORS * 32)) + warp * STAGES * LANE_WORDS * 32 + lane;
  u32* zero_ring = scale_ring + WARPS * STAGES * LANE_WORDS * 32;
  const int x_row = threadIdx.x / 8, x_place = x_row * 8 + (threadIdx.x % 8 ^ x_row % 8);
  const u16* x_from = x + (first_row + x_row) * x_stride + threadIdx.x % 8 * 8;

  auto copy_weights = [&](int half, int slot) {
    const u32 at = tile + half / 2;
#pragma unroll
    for (int v = 0; v < LANE_VECTORS; v++)
      copy_async<16>(ring + (slot * LANE_VECTORS + v) * 32, packed + (at * VECTORS + half % 2 * LANE_VECTORS + v) * 32 + lane);
#pragma unroll
    for (int j = 0; j < LANE_WORDS; j++) {
      const u32 group = at * GROUPS + (GROUP == 128 ? 0 : half % 2 * LANE_WORDS + j);
      copy_async<4>(scale_ring + (slot * LANE_WORDS + j) * 32, scale + group * 8 + g);
      if (ZEROS) copy_async<4>(zero_ring + (slot * LANE_WORDS + j) * 32, zero + group * 2 + g / 4);
    }
  };
  auto copy_x = [&](int half, int slot) {
#pragma unroll
    for (int j = 0; j < (BLOCK_ROWS + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE; j++) {
      const int r = ROWS_AT_ONCE * j;
      if (BLOCK_ROWS % ROWS_AT_ONCE == 0 || x_row + r < BLOCK_ROWS)
        copy_async<16>(shared + slot * X_VECTORS + x_place + r * 8, x_from + r * x_stride + half * HALF, first_row + x_row + r < rows);
    }
  };

  let_next_kernel_start();
#pragma unroll
  for (int i = 0; i < AHEAD; i++)
    if (begin + i < end) copy_weights(begin + i, i);
  await_previous_kernel();
#pragma unroll
  for (int i = 0; i < AHEAD; i++) {
    if (begin + i < end) copy_x(begin + i, i);
    if (i % TOGETHER == TOGETHER - 1) commit_copies();  // the first group also holds all weights of the prologue
  }

  float total[BLOCK_ROWS / 2];
#pragma unroll
  for (int i = 0; i < BLOCK_ROWS / 2; i++) total[i] = 0;
  auto add_half = [&](int slot, u32 (&a)[4][4]) {
    uint4 w[LANE_VECTORS];
#pragma unroll
    for (int v = 0; v < LANE_VECTORS; v++) w[v] = ring[(slot * LANE_VECTORS + v) * 32];
    u32 z[2], pairs[2];
    symmetric_points(z);
#pragma unroll
    for (int step = 0; step < 4; step++) {
      if (GROUP && step % STEPS_OF_WORD == 0) {
        const int word = (slot * LANE_WORDS + step / STEPS_OF_WORD) * 32;
        const u32 s = scale_ring[word];
        const float low = low_number(s, SCALE_BF16), high = high_number(s, SCALE_BF16);
        pairs[0] = pack2(low, low), pairs[1] = pack2(high, high);
        if (ZEROS) zero_points(z, zero_ring[word] >> 8 * (g % 4));
      }
      decode(a[step], w, step, z);
      if (GROUP)
#pragma unroll
        for (int i = 0; i < 4; i++) a[step][i] = multiply2(a[step][i], pairs[i % 2]);
    }
    // K-major, 128-byte swizzle, 1024 bytes from 8 rows to the next 8; a step is 32 bytes further within the rows.
    const unsigned long long x_at = shared_address(shared + slot * X_VECTORS) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
    begin_products();
#pragma unroll
    for (int step = 0; step < 4; step++) multiply(total, a[step], x_at + 2 * step);
    commit_products();
    await_products<1>();
  };
  auto exchange = [&](int half, int slot) {
    await_copies<AHEAD / TOGETHER - 1>();
    show_to_tensor_cores();
    __syncthreads();  // what comes next is there for all, and all are done with what was before the last
    const int ahead = half + AHEAD, free_slot = slot + AHEAD < STAGES ? slot + AHEAD : slot + AHEAD - STAGES;
#pragma unroll
    for (int i = 0; i < TOGETHER; i++)
      if (ahead + i < end) copy_weights(ahead + i, free_slot + i), copy_x(ahead + i, free_slot + i);
    commit_copies();
  };
  u32 even[4][4], odd[4][4];
  int slot = 0;
  for (int half = begin; half < end; half += 2) {
    exchange(half, slot);
    add_half(slot, even);
    slot = slot == STAGES - 1 ? 0 : slot + 1;
    if (TOGETHER == 1) exchange(half + 1, slot);
    add_half(slot, odd);
    slot = slot == STAGES - 1 ? 0 : slot + 1;
  }

  await_products<0>();
  await_copies<0>();
  __syncthreads();
  float* sums = (float*)shared;  // [BLOCK_ROWS][PAD]
#pragma unroll
  for (int i = 0; i < BLOCK_ROWS / 2; i++) sums[(i / 4 * 8 + 2 * c + i % 2) * PAD + warp * 16 + g + i / 2 % 2 * 8] = total[i];
  __syncthreads();
  for (int i = threadIdx.x; i < BLOCK_ROWS * BLOCK_OUTPUTS / 4; i += THREADS) {
    const int row = i / (BLOCK_OUTPUTS / 4), output = i % (BLOCK_OUTPUTS / 4) * 4, n = blockIdx.y * BLOCK_OUTPUTS + output;
    if (first_row + row < rows && n < outputs)
      store_sums(*(float4*)(sums + row * PAD + output), y, scale, first_row + row, n, rows, outputs);
  }
}
