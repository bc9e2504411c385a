// y = x W^T for plain W [outputs, inputs] of few outputs: 16 outputs a block for 16 rows of x at most, the inputs cut into gridDim.y parts,
// every WARPS-th chunk of 128 of a part for a warp. The weights are the A operand of m16n8k16, the rows of x its columns. W is asked
// for before the kernel before this one is done, whose results x may be. The last part adds what the others leave in `parts`, in their
// order, each with a flag in `raised`, which is zero between kernels. blockIdx: 16 outputs, part, block of X_ROWS rows.
// Macros besides the prelude's: WARPS, X_ROWS (8 or 16).
#define COLUMNS (X_ROWS / 8)
#define ROW_PIECES 16  // of 16 bytes, of 128 numbers; shuffled within a row against bank conflicts, since copies want rows of whole lines
#define SUMS (16 * X_ROWS)

extern "C" __global__ void __launch_bounds__(32 * WARPS) few_outputs(
    const uint4* __restrict__ weight, const u16* __restrict__ x, u16* __restrict__ y, float* parts, u32* raised, int all_rows, int outputs,
    int inputs, long long x_stride) {
  extern __shared__ __align__(128) uint4 shared[];
  __shared__ float sums[WARPS][SUMS];  // [rows][outputs]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4, first_row = blockIdx.z * X_ROWS;
  const int chunks = inputs / CHUNK, rows = min(X_ROWS, all_rows - first_row), step_chunks = WARPS * gridDim.y;
  uint4* w_stage = shared + warp * (16 + X_ROWS) * ROW_PIECES;
  uint4* x_stage = w_stage + 16 * ROW_PIECES;
  int chunk = blockIdx.y * WARPS + warp;
  auto copy_weights = [&] {
#pragma unroll
    for (int j = 0; j < 16; j += 2)
      copy_async<16>(w_stage + (lane / 16 + j) * ROW_PIECES + (lane % 16 ^ (lane / 16 + j) % 8),
                     weight + ((long long)(blockIdx.x * 16 + lane / 16 + j) * chunks + chunk) * 16 + lane % 16);
  };
  if (chunk < chunks) copy_weights();
  let_next_kernel_start();
  await_previous_kernel();
  float total[COLUMNS][4] = {};
  for (; chunk < chunks; chunk += step_chunks) {
    if (chunk >= step_chunks) copy_weights();
#pragma unroll
    for (int j = 0; j < X_ROWS; j += 2) {
      const int r = min(lane / 16 + j, rows - 1);  // sums of columns beyond the rows are not used
      copy_async<16>(x_stage + (lane / 16 + j) * ROW_PIECES + (lane % 16 ^ (lane / 16 + j) % 8), x + (first_row + r) * x_stride + chunk * CHUNK + lane % 16 * 8);
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
#pragma unroll
  for (int i = 0; i < 4 * COLUMNS; i++) sums[warp][(i / 4 * 8 + 2 * c + i % 2) * 16 + g + i % 4 / 2 * 8] = total[i / 4][i % 4];

  const int tile = blockIdx.z * gridDim.x + blockIdx.x, last = gridDim.y - 1;
  if (blockIdx.y == last)
    for (int part = threadIdx.x; part < last; part += 32 * WARPS) await_and_lower(raised + tile * last + part);
  __syncthreads();
  for (int i = threadIdx.x; i < SUMS; i += 32 * WARPS) {
    float value = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) value += sums[w][i];
    if (blockIdx.y < last) {
      parts[(tile * last + blockIdx.y) * SUMS + i] = value;
      continue;
    }
    for (int part = 0; part < last; part++) value += __ldcg(parts + (tile * last + part) * SUMS + i);
    if (i / 16 < rows) y[(long long)(first_row + i / 16) * outputs + blockIdx.x * 16 + i % 16] = (u16)pack2(value, 0);
  }
  if (blockIdx.y < last) {
    __syncthreads();
    if (threadIdx.x == 0) raise(raised + tile * last + blockIdx.y);
  }
}
