// 17 rows and more where there is no wgmma: y = x W^T by m16n8k16 for BLOCK_ROWS rows of x and 128 outputs a tile.
//
// A worker (work.cuh) is a block. 8 warps: 4 of 32 outputs each, times 2 halves of the rows. x and W come through a ring of STAGES chunks
// of the inputs, which goes on from one tile to the next. Macros: BLOCK_ROWS (32 or 64), STAGES, RESIDENT (blocks of a processor), SPLIT.
#define ACROSS (BLOCK_ROWS / 16)  // eights of rows of a warp
#define TILE_VECTORS (VECTORS * 32)
#define WEIGHT_VECTORS (8 * TILE_VECTORS)
#define X_VECTORS (BLOCK_ROWS * 16)
#define STAGE_VECTORS (WEIGHT_VECTORS + X_VECTORS + 8 * GROUPS * 2 + (ZEROS ? 4 * GROUPS : 0))
#define SCALE_WORDS (8 * (GROUP ? GROUPS : 1))  // of a tile
#define ZERO_WORDS (2 * (GROUP ? GROUPS : 1))

extern "C" __global__ void __launch_bounds__(256, RESIDENT) ampere_rows(
    const uint4* __restrict__ packed, const u32* __restrict__ scale, const u32* __restrict__ zero, const u16* __restrict__ x,
    u16* __restrict__ y, float4* sums, int rows, int outputs, int inputs, long long x_stride, int waves, int row_band) {
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, pair = warp % 4, half = warp / 4;
  const int chunks = inputs / CHUNK, tiles = outputs / 16;
  const Work work(blockIdx.x, gridDim.x, (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, (tiles + 7) / 8, chunks, waves, row_band);
  const Target target{y, scale, rows, outputs};

  // What this thread copies of the next unit: vectors of W, words of scales and zero points, vectors of x, in the units of each pointer.
  int unit = 0, step, first_row;
  u32 weight_at[WEIGHT_VECTORS / 256], scale_at, zero_at;
  const int x_row = threadIdx.x / 16, x_place = WEIGHT_VECTORS + x_row * 16 + (threadIdx.x % 16 ^ x_row % 8);
  const u16* x_from;
  auto go_to_unit = [&] {
    int tile, row_block, output_block;
    work.place(unit, tile, step);
    work.blocks(tile, row_block, output_block);
#pragma unroll
    for (int j = 0; j < WEIGHT_VECTORS / 256; j++) {
      const int i = threadIdx.x + 256 * j;
      weight_at[j] = (min(output_block * 8 + i / TILE_VECTORS, tiles - 1) * chunks + step) * TILE_VECTORS + i % TILE_VECTORS;
    }
    scale_at = (min(output_block * 8 + (int)threadIdx.x / SCALE_WORDS, tiles - 1) * chunks + step) * SCALE_WORDS + threadIdx.x % SCALE_WORDS;
    zero_at = (min(output_block * 8 + (int)threadIdx.x / ZERO_WORDS, tiles - 1) * chunks + step) * ZERO_WORDS + threadIdx.x % ZERO_WORDS;
    first_row = row_block * BLOCK_ROWS;
    x_from = x + (first_row + x_row) * x_stride + threadIdx.x % 16 * 8 + step * CHUNK;
  };
  auto advance = [&] {
    unit++, step++;
    if (step == chunks || unit == work.whole) {
      if (unit < work.count) go_to_unit();
      return;
    }
#pragma unroll
    for (int j = 0; j < WEIGHT_VECTORS / 256; j++) weight_at[j] += TILE_VECTORS;
    scale_at += SCALE_WORDS, zero_at += ZERO_WORDS, x_from += CHUNK;
  };
  auto copy_weights = [&](uint4* stage) {
#pragma unroll
    for (int j = 0; j < WEIGHT_VECTORS / 256; j++) copy_async<16>(stage + threadIdx.x + 256 * j, packed + weight_at[j]);
    u32* words = (u32*)(stage + WEIGHT_VECTORS + X_VECTORS);
    if (threadIdx.x < 64 * GROUPS) copy_async<4>(words + threadIdx.x, scale + scale_at);
    if (ZEROS && threadIdx.x < 16 * GROUPS) copy_async<4>(words + 64 * GROUPS + threadIdx.x, zero + zero_at);
  };
  auto copy_x = [&](uint4* stage) {  // pieces of 8 numbers, shuffled within a row against bank conflicts
#pragma unroll
    for (int j = 0; j < BLOCK_ROWS / 16; j++)
      copy_async<16>(stage + x_place + j * 256, x_from + j * 16 * x_stride, first_row + x_row + 16 * j < rows);
  };

  let_next_kernel_start();
  go_to_unit();
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++, advance())
    if (unit < work.count) copy_weights(shared + i * STAGE_VECTORS);
  await_previous_kernel();  // the weights need not wait for what makes x
  unit = 0;
  go_to_unit();
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++, advance()) {
    if (unit < work.count) copy_x(shared + i * STAGE_VECTORS);
    commit_copies();  // the first group also holds all weights so far
  }

  float total[8 * ACROSS];  // [2 tiles][ACROSS][4]
  int slot = 0;
  auto add_chunk = [&] {
    await_copies<STAGES - 2>();
    __syncthreads();
    if (unit < work.count) {
      uint4* stage = shared + (slot == 0 ? STAGES - 1 : slot - 1) * STAGE_VECTORS;
      copy_weights(stage);
      copy_x(stage);
    }
    commit_copies();
    advance();
    const uint4* stage = shared + slot * STAGE_VECTORS;
    const u32* words = (const u32*)(stage + WEIGHT_VECTORS + X_VECTORS);
    const uint4* xs = stage + WEIGHT_VECTORS + (half * (BLOCK_ROWS / 2) + lane % 8) * 16;
#pragma unroll
    for (int part = 0; part < 2; part++) {  // of 64 inputs
      uint4 w[2][VECTORS / 2];
#pragma unroll
      for (int i = 0; i < VECTORS; i++)
        w[i / (VECTORS / 2)][i % (VECTORS / 2)] = stage[((pair * 2 + i / (VECTORS / 2)) * VECTORS + part * (VECTORS / 2) + i % (VECTORS / 2)) * 32 + lane];
#pragma unroll
      for (int block = 0; block < 2; block++) {  // of 32 inputs
        const int group = GROUP ? (part * 4 + block * 2) / GROUP_STEPS : 0;
        u32 a[2][2][4];
#pragma unroll
        for (int t = 0; t < 2; t++) {
          u32 z[2];
          symmetric_points(z);
          if (ZEROS) zero_points(z, words[64 * GROUPS + ((pair * 2 + t) * GROUPS + group) * 2 + g / 4] >> 8 * (g % 4));
          decode(a[t][0], w[t], block * 2, z);
          decode(a[t][1], w[t], block * 2 + 1, z);
          if (GROUP) {
            const u32 s = words[((pair * 2 + t) * GROUPS + group) * 8 + g];
            const float low = low_number(s, SCALE_BF16), high = high_number(s, SCALE_BF16);
            const u32 pairs[2] = {pack2(low, low), pack2(high, high)};
#pragma unroll
            for (int i = 0; i < 8; i++) a[t][i / 4][i % 4] = multiply2(a[t][i / 4][i % 4], pairs[i % 2]);
          }
        }
#pragma unroll
        for (int n = 0; n < ACROSS; n++) {
          u32 b[4];
          load_matrices(b, xs + n * 128 + (part * 8 + block * 4 + lane / 8 ^ lane % 8));
#pragma unroll
          for (int t = 0; t < 2; t++) {
            mma(*(float(*)[4])(total + 4 * (t * ACROSS + n)), a[t][0], b[0], b[1]);
            mma(*(float(*)[4])(total + 4 * (t * ACROSS + n)), a[t][1], b[2], b[3]);
          }
        }
      }
    }
    slot = slot == STAGES - 1 ? 0 : slot + 1;
  };

  const Shared<2 * ACROSS, 4, 8> shared_sums{work, sums + warp * 2 * ACROSS * 32 + lane, 8 * 2 * ACROSS * 32};
  auto store = [&](float4 sum, int tile, int i) {
    int row_block, output_block;
    work.blocks(tile, row_block, output_block);
    target.store(sum, row_block * BLOCK_ROWS + half * (BLOCK_ROWS / 2) + i % ACROSS * 8, output_block * 8 + pair * 2 + i / ACROSS);
  };
  for (int at = 0; at < work.count;) {
    int tile, from;
    work.place(at, tile, from);
    const int length = min(chunks - from, work.count - at);
#pragma unroll
    for (int i = 0; i < 8 * ACROSS; i++) total[i] = 0;
    for (int i = 0; i < length; i++) add_chunk();
    at += length;
    if (!shared_sums.collect(total, tile, from, length)) continue;
#pragma unroll
    for (int i = 0; i < 2 * ACROSS; i++) store(make_float4(total[4 * i], total[4 * i + 1], total[4 * i + 2], total[4 * i + 3]), tile, i);
  }
  shared_sums.finish(store);
}
