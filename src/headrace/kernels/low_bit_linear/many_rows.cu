// 9 to 16 rows: y = x W^T for BLOCK_ROWS rows of x and 128 outputs a block, weights decoded once for all of those rows.
//
// 8 warps: 4 of 32 outputs each, times 2 halves of every chunk of inputs, added at the end. x and W come through a ring of STAGES chunks.
// A scale multiplies the sum of its group.
// blockIdx: block of rows, of outputs, part of the inputs; with PARTS the sums go to float32 [parts, rows, outputs] for sum_parts. Macros:
// STAGES, PARTS.
#define COLUMNS 2  // eights of rows
#define BLOCK_ROWS (8 * COLUMNS)
#define PAD 132  // floats from one row of sums to the next
#define TILE_VECTORS (VECTORS * 32)
#define WEIGHT_VECTORS (8 * TILE_VECTORS)
#define STAGE_VECTORS (WEIGHT_VECTORS + BLOCK_ROWS * 16 + 8 * GROUPS * 2 + (ZEROS ? 4 * GROUPS : 0))
#define SCALE_WORDS (8 * (GROUP ? GROUPS : 1))  // of a tile
#define ZERO_WORDS (2 * (GROUP ? GROUPS : 1))

extern "C" __global__ void __launch_bounds__(256, 2) many_rows(
    const uint4* __restrict__ packed, const u32* __restrict__ scale, const u32* __restrict__ zero, const u16* __restrict__ x,
    void* __restrict__ y, int rows, int outputs, int inputs, long long x_stride) {
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4, across = warp % 4, half = warp / 4;
  const int chunks = inputs / CHUNK, tiles = outputs / 16, first_tile = blockIdx.y * 8, first_row = blockIdx.x * BLOCK_ROWS;
  const int begin = (long long)chunks * blockIdx.z / gridDim.z, end = (long long)chunks * (blockIdx.z + 1) / gridDim.z;

  // What a thread copies of each chunk, in the units of each pointer.
  u32 weight_at[WEIGHT_VECTORS / 256];
#pragma unroll
  for (int j = 0; j < WEIGHT_VECTORS / 256; j++) {
    const int i = threadIdx.x + 256 * j;
    weight_at[j] = min(first_tile + i / TILE_VECTORS, tiles - 1) * chunks * TILE_VECTORS + i % TILE_VECTORS;
  }
  const u32 scale_at = min(first_tile + (int)threadIdx.x / SCALE_WORDS, tiles - 1) * chunks * SCALE_WORDS + threadIdx.x % SCALE_WORDS;
  const u32 zero_at = min(first_tile + (int)threadIdx.x / ZERO_WORDS, tiles - 1) * chunks * ZERO_WORDS + threadIdx.x % ZERO_WORDS;
  const int x_row = threadIdx.x / 16, x_place = WEIGHT_VECTORS + x_row * 16 + (threadIdx.x % 16 ^ x_row % 8);
  const u16* x_from = x + (first_row + x_row) * x_stride + threadIdx.x % 16 * 8;

  auto copy_weights = [&](int chunk, uint4* stage) {
#pragma unroll
    for (int j = 0; j < WEIGHT_VECTORS / 256; j++)
      copy_async<16>(stage + threadIdx.x + 256 * j, packed + weight_at[j] + chunk * TILE_VECTORS);
    u32* words = (u32*)(stage + WEIGHT_VECTORS + BLOCK_ROWS * 16);
    if (threadIdx.x < 64 * GROUPS) copy_async<4>(words + threadIdx.x, scale + scale_at + chunk * SCALE_WORDS);
    if (ZEROS && threadIdx.x < 16 * GROUPS) copy_async<4>(words + 64 * GROUPS + threadIdx.x, zero + zero_at + chunk * ZERO_WORDS);
  };
  auto copy_x = [&](int chunk, uint4* stage) {  // pieces of 8 numbers, shuffled within a row against bank conflicts
#pragma unroll
    for (int j = 0; j < COLUMNS / 2; j++)
      copy_async<16>(stage + x_place + j * 256, x_from + j * 16 * x_stride + chunk * CHUNK, first_row + x_row + 16 * j < rows);
  };

  let_next_kernel_start();
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++)
    if (begin + i < end) copy_weights(begin + i, shared + i * STAGE_VECTORS);
  await_previous_kernel();
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) {
    if (begin + i < end) copy_x(begin + i, shared + i * STAGE_VECTORS);
    commit_copies();  // the first group also holds all weights of the prologue
  }

  float total[2][COLUMNS][4] = {};
  int slot = 0;
  for (int chunk = begin; chunk < end; chunk++) {
    await_copies<STAGES - 2>();
    __syncthreads();
    if (chunk + STAGES - 1 < end) {
      uint4* stage = shared + (slot == 0 ? STAGES - 1 : slot - 1) * STAGE_VECTORS;
      copy_weights(chunk + STAGES - 1, stage);
      copy_x(chunk + STAGES - 1, stage);
    }
    commit_copies();
    const uint4* stage = shared + slot * STAGE_VECTORS;
    const u32* words = (const u32*)(stage + WEIGHT_VECTORS + BLOCK_ROWS * 16);
    uint4 w[2][VECTORS / 2];
#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
      for (int v = 0; v < VECTORS / 2; v++) w[t][v] = stage[((across * 2 + t) * VECTORS + half * (VECTORS / 2) + v) * 32 + lane];
    float sum[2][COLUMNS][4];
#pragma unroll
    for (int block = 0; block < 2; block++) {  // of 32 inputs
      const int group = GROUP ? (half * 4 + block * 2) / GROUP_STEPS : 0;
      u32 a[2][2][4];
#pragma unroll
      for (int t = 0; t < 2; t++) {
        u32 z[2];
        symmetric_points(z);
        if (ZEROS) zero_points(z, words[64 * GROUPS + ((across * 2 + t) * GROUPS + group) * 2 + g / 4] >> 8 * (g % 4));
        decode(a[t][0], w[t], block * 2, z);
        decode(a[t][1], w[t], block * 2 + 1, z);
      }
      const uint4* xs = stage + WEIGHT_VECTORS + lane % 8 * 16 + (half * 8 + block * 4 + lane / 8 ^ lane % 8);
#pragma unroll
      for (int n = 0; n < COLUMNS; n++) {
        u32 b[4];
        load_matrices(b, xs + n * 128);
#pragma unroll
        for (int t = 0; t < 2; t++) {
          float(&into)[4] = GROUP ? sum[t][n] : total[t][n];
          if (GROUP && (block == 0 || GROUP == 32)) into[0] = into[1] = into[2] = into[3] = 0;
          mma(into, a[t][0], b[0], b[1]);
          mma(into, a[t][1], b[2], b[3]);
        }
      }
      if (GROUP && (block == 1 || GROUP == 32)) {
#pragma unroll
        for (int t = 0; t < 2; t++) {
          const u32 s = words[((across * 2 + t) * GROUPS + group) * 8 + g];
          const float low = low_number(s, SCALE_BF16), high = high_number(s, SCALE_BF16);
#pragma unroll
          for (int n = 0; n < COLUMNS; n++) {
            total[t][n][0] += low * sum[t][n][0], total[t][n][1] += low * sum[t][n][1];
            total[t][n][2] += high * sum[t][n][2], total[t][n][3] += high * sum[t][n][3];
          }
        }
      }
    }
    slot = slot == STAGES - 1 ? 0 : slot + 1;
  }

  await_copies<0>();
  __syncthreads();
  float* sums = (float*)shared;  // [BLOCK_ROWS][PAD]
#pragma unroll
  for (int turn = 1; turn >= 0; turn--) {
    if (half == turn) {
#pragma unroll
      for (int t = 0; t < 2; t++)
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            float* at = sums + (n * 8 + 2 * c + i % 2) * PAD + across * 32 + t * 16 + g + i / 2 * 8;
            *at = turn ? total[t][n][i] : *at + total[t][n][i];
          }
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < BLOCK_ROWS * 32; i += 256) {
    const int r = first_row + i / 32, n = blockIdx.y * 128 + i % 32 * 4;
    if (r < rows && n < outputs) store_sums(*(float4*)(sums + i / 32 * PAD + i % 32 * 4), y, scale, r, n, rows, outputs);
  }
}
