// A block of y = x W^T for plain W [outputs, inputs] of few outputs: 16 outputs for X rows of x at most (8 or 16), the inputs cut into
// `parts`, every WARPS-th chunk of 128 of a part for a warp. The weights are the A operand of m16n8k16, the rows of x its columns. W is
// asked for before the kernel before this one is done, whose results x may be. The last part adds what the others leave in `sums`, in
// their order, each with a flag in `raised`, which is zero between kernels; it is to have the highest blockIdx of them.

struct FewOutputs {
  const uint4* weight;
  u16* y;
  float* sums;
  u32* raised;
  int outputs, parts;
};
template <int X> __device__ __forceinline__ void few_outputs_block(
    uint4* shared, float* factors, const FewOutputs& of, const Normed& normed, const u16* x, int block_outputs, int part, int row_block,
    int all_rows, int inputs, long long x_stride) {
  constexpr int ROW_PIECES = 16;  // of 16 bytes, of 128 numbers; shuffled within a row against bank conflicts, since copies want rows of whole lines
  constexpr int COLUMNS = X / 8, BLOCK_SUMS = 16 * X, STAGE = (16 + X) * ROW_PIECES;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4, first_row = row_block * X;
  const int chunks = inputs / CHUNK, row_count = min(X, all_rows - first_row), step_chunks = WARPS * of.parts;
  uint4* w_stage = shared + warp * STAGE;
  uint4* x_stage = w_stage + 16 * ROW_PIECES;
  int chunk = part * WARPS + warp;
  auto copy_weights = [&] {
#pragma unroll
    for (int j = 0; j < 16; j += 2)
      copy_async<16>(w_stage + (lane / 16 + j) * ROW_PIECES + (lane % 16 ^ (lane / 16 + j) % 8),
                     of.weight + ((long long)(block_outputs * 16 + lane / 16 + j) * chunks + chunk) * 16 + lane % 16);
  };
  if (chunk < chunks) copy_weights();
  let_next_kernel_start();
  await_previous_kernel();
  float total[COLUMNS][4] = {};
  for (; chunk < chunks; chunk += step_chunks) {
    if (chunk >= step_chunks) copy_weights();
#pragma unroll
    for (int j = 0; j < X; j += 2) {
      const int r = min(lane / 16 + j, row_count - 1);  // sums of columns beyond the rows are not used
      copy_async<16>(x_stage + (lane / 16 + j) * ROW_PIECES + (lane % 16 ^ (lane / 16 + j) % 8),
                     x + (first_row + r) * x_stride + chunk * CHUNK + lane % 16 * 8);
    }
    commit_copies();
    await_copies<0>();
    __syncwarp();
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
      u32 a[4], b[4];
      load_matrices(a, w_stage + lane % 16 * ROW_PIECES + (step * 2 + lane / 16 ^ lane % 8));
      const int r = COLUMNS == 1 ? lane % 8 : lane % 8 + lane / 16 * 8;
      load_matrices(b, x_stage + r * ROW_PIECES + (step * 2 + lane / 8 % 2 ^ lane % 8));
#pragma unroll
      for (int n = 0; n < COLUMNS; n++) mma(total[n], a, b[2 * n], b[2 * n + 1]);
    }
    __syncwarp();
  }
  float* own = (float*)w_stage;  // [rows][outputs]
#pragma unroll
  for (int i = 0; i < 4 * COLUMNS; i++) own[(i / 4 * 8 + 2 * c + i % 2) * 16 + g + i % 4 / 2 * 8] = total[i / 4][i % 4];

  const int tile = row_block * (of.outputs / 16) + block_outputs, last = of.parts - 1;
  if (NORMED && part == last) row_factors(factors, normed, first_row, row_count, inputs, warp, WARPS);
  if (part == last)
    for (int p = threadIdx.x; p < last; p += 32 * WARPS) await_and_lower(of.raised + tile * last + p);
  __syncthreads();
  for (int i = threadIdx.x; i < BLOCK_SUMS; i += 32 * WARPS) {
    float value = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) value += ((const float*)(shared + w * STAGE))[i];
    if (part < last) {
      of.sums[(tile * last + part) * BLOCK_SUMS + i] = value;
      continue;
    }
    for (int p = 0; p < last; p++) value += __ldcg(of.sums + (tile * last + p) * BLOCK_SUMS + i);
    if (i / 16 >= row_count) continue;
    if (NORMED) value *= factors[i / 16];
    of.y[(long long)(first_row + i / 16) * of.outputs + block_outputs * 16 + i % 16] = (u16)pack2(value, 0);
  }
  if (part < last) {
    __syncthreads();
    if (threadIdx.x == 0) raise(of.raised + tile * last + part);
  }
}
