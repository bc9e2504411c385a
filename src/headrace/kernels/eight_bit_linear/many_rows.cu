// Rows of codes on every card: y = x W^T for BLOCK_ROWS = 8 * COLUMNS rows of x and 128 outputs a block, by m16n8k32.
//
// 8 warps: 4 of 32 outputs each, times 2 halves of every chunk of inputs, added at the end. x and W come through a ring of STAGES chunks.
// blockIdx: block of rows, of outputs, part of the inputs; with PARTS the sums go to float32 [parts, rows, outputs] for sum_parts. Macros:
// those of the preludes, COLUMNS, STAGES, PARTS.
#define BLOCK_ROWS (8 * COLUMNS)
#define PAD 132  // floats from one row of sums to the next
#define TILE_VECTORS (VECTORS * 32)
#define WEIGHT_VECTORS (8 * TILE_VECTORS)
#define X_VECTORS (BLOCK_ROWS * 8)
#define STAGE_VECTORS (WEIGHT_VECTORS + X_VECTORS + 16 * GROUPS + (ZEROS ? 4 * GROUPS : 0))
#define PARTS_OF_HALF (GROUP == 32 ? 2 : 1)
#define SCALE_WORDS (8 * (GROUP ? GROUPS : 1))  // of a tile
#define ZERO_WORDS (2 * (GROUP ? GROUPS : 1))

extern "C" __global__ void __launch_bounds__(256, COLUMNS <= (WIDENED ? 2 : 4) ? 2 : 1) many_rows(
    const uint4* __restrict__ packed, const u32* __restrict__ scale, const u32* __restrict__ zero, const uint4* __restrict__ x,
    const float* __restrict__ x_scale, void* __restrict__ y, int rows, int outputs, int inputs) {
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

  auto copy_weights = [&](int chunk, uint4* stage) {
#pragma unroll
    for (int j = 0; j < WEIGHT_VECTORS / 256; j++)
      copy_async<16>(stage + threadIdx.x + 256 * j, packed + weight_at[j] + chunk * TILE_VECTORS);
    u32* words = (u32*)(stage + WEIGHT_VECTORS + X_VECTORS);
    if (threadIdx.x < 64 * GROUPS) copy_async<4>(words + threadIdx.x, scale + scale_at + chunk * SCALE_WORDS);
    if (ZEROS && threadIdx.x < 16 * GROUPS) copy_async<4>(words + 64 * GROUPS + threadIdx.x, zero + zero_at + chunk * ZERO_WORDS);
  };
  auto copy_x = [&](int chunk, uint4* stage) {  // rows lie together in blocks of 64, as they will in shared memory
#pragma unroll
    for (int j = 0; j < (X_VECTORS + 255) / 256; j++) {
      const int i = threadIdx.x + 256 * j, row = first_row + i / 8;
      if (X_VECTORS % 256 == 0 || i < X_VECTORS)
        copy_async<16>(stage + WEIGHT_VECTORS + i, x + (u32)(row / 64 * chunks + chunk) * 512 + row % 64 * 8 + i % 8);
    }
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

#if WHOLE
  int total[2][COLUMNS][4] = {};
#else
  float total[2][COLUMNS][4] = {};
#endif
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
    const u32* words = (const u32*)(stage + WEIGHT_VECTORS + X_VECTORS);
    u32 a[2][2][A_REGISTERS];
    float scales[2][PARTS_OF_HALF][2];
#pragma unroll
    for (int t = 0; t < 2; t++) {
      uint4 w[VECTORS / 2];
#pragma unroll
      for (int v = 0; v < VECTORS / 2; v++) w[v] = stage[((across * 2 + t) * VECTORS + half * (VECTORS / 2) + v) * 32 + lane];
#pragma unroll
      for (int step = 0; step < 2; step++) {
        const int group = GROUP ? (half * 2 + step) / (GROUP / 32) : 0, part = PARTS_OF_HALF == 2 ? step : 0;
        const u32 points = ZEROS ? words[64 * GROUPS + ((across * 2 + t) * GROUPS + group) * 2 + g / 4] >> 8 * (g % 4) & 255 : 0x88;
        decode_operand(a[t][step], w, step, points);
        const u32 s = GROUP ? words[((across * 2 + t) * GROUPS + group) * 8 + g] : 0;
        scales[t][part][0] = GROUP ? low_number(s, SCALE_BF16) : 1, scales[t][part][1] = GROUP ? high_number(s, SCALE_BF16) : 1;
      }
    }
    const uint4* xs = stage + WEIGHT_VECTORS + lane % 8 * 8 + (half * 4 + lane / 8 ^ lane % 8);
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
      u32 b[4];
      load_matrices(b, xs + n * 64);
      const Columns columns[2] = {columns_of(b[0], b[1]), columns_of(b[2], b[3])};
#pragma unroll
      for (int t = 0; t < 2; t++)
#pragma unroll
        for (int part = 0; part < PARTS_OF_HALF; part++) {
#if WHOLE
          int(&sum)[4] = total[t][n];
#else
          Sum sum[4] = {};
#endif
#pragma unroll
          for (int step = part; step < 2 / (PARTS_OF_HALF - part); step++)
            multiply_codes(sum, a[t][step], columns[step]);
#if !WHOLE
#pragma unroll
          for (int i = 0; i < 4; i++) total[t][n][i] += scales[t][part][i / 2] * (float)sum[i];
#endif
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
            *at = turn ? (float)total[t][n][i] : *at + (float)total[t][n][i];
          }
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < BLOCK_ROWS * 32; i += 256) {
    const int r = first_row + i / 32, n = blockIdx.y * 128 + i % 32 * 4;
    if (r >= rows || n >= outputs) continue;
    const float s = CODE_UNIT * __ldg(x_scale + r);
    float4 v = *(float4*)(sums + i / 32 * PAD + i % 32 * 4);
    v.x *= s, v.y *= s, v.z *= s, v.w *= s;
    store_sums(v, y, scale, r, n, rows, outputs);
  }
}
