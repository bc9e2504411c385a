// 1 to 8 rows of activations: y = x W^T, reading W once at the memory's rate.
//
// The weights are the A operand of m16n8k16 and the rows of x its 8 columns. A warp owns TILES tiles of 16 outputs and every WARPS-th
// chunk of the inputs, in a ring of STAGES chunks of its own, so the loop has no barrier. The warps' sums are added in their order at the
// end. Macros: TILES, WARPS, STAGES, X_ROWS (1, 2, 4 or 8, at least the rows), GATED (1: the first half of the outputs is a gate, as are the
// first half of a block's tiles: y [rows, outputs / 2] = silu(gate) times the other half).
#define WORDS (TILES * GROUPS)  // of scales, for a lane and stage
#define CHAINS (TILES == 1 ? 2 : 1)  // independent sums of a tile, to hide the latency of mma
#define X_VECTORS (X_ROWS * 16)      // of a stage

extern "C" __global__ void __launch_bounds__(32 * WARPS) few_rows(
    const uint4* __restrict__ packed, const u32* __restrict__ scale, const u32* __restrict__ zero, const u16* __restrict__ x,
    u16* __restrict__ y, int rows, int outputs, int inputs, long long x_stride) {
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
  const int chunks = inputs / CHUNK, tiles = outputs / (GATED ? 32 : 16), block_tiles = TILES / (GATED + 1);
  auto tile_of = [&](int t) {
    const int half = GATED && t >= block_tiles;
    return min((int)blockIdx.x * block_tiles + t - half * block_tiles, tiles - 1) + half * tiles;
  };
  uint4* ring = shared + warp * STAGES * TILES * VECTORS * 32 + lane;
  uint4* x_ring = shared + WARPS * STAGES * TILES * VECTORS * 32 + warp * STAGES * X_VECTORS;
  u32* scale_ring = (u32*)(shared + WARPS * STAGES * (TILES * VECTORS * 32 + X_VECTORS)) + warp * STAGES * WORDS * 32 + lane;
  u32* zero_ring = scale_ring + WARPS * STAGES * WORDS * 32;

  auto copy_weights = [&](int chunk, int slot) {
#pragma unroll
    for (int t = 0; t < TILES; t++) {
      const u32 at = tile_of(t) * chunks + chunk;
#pragma unroll
      for (int v = 0; v < VECTORS; v++)
        copy_async<16>(ring + ((slot * TILES + t) * VECTORS + v) * 32, packed + (at * VECTORS + v) * 32 + lane);
#pragma unroll
      for (int j = 0; j < GROUPS; j++) {
        copy_async<4>(scale_ring + ((slot * TILES + t) * GROUPS + j) * 32, scale + (at * GROUPS + j) * 8 + g);
        if (ZEROS) copy_async<4>(zero_ring + ((slot * TILES + t) * GROUPS + j) * 32, zero + (at * GROUPS + j) * 2 + g / 4);
      }
    }
  };
  const int x_row = lane / 16, x_piece = lane % 16;
  auto copy_x = [&](int chunk, int slot) {  // pieces of 8 numbers, shuffled within a row against bank conflicts
#pragma unroll
    for (int j = 0; j < (X_ROWS + 1) / 2; j++) {
      const int r = x_row + 2 * j;
      if (r < X_ROWS)
        copy_async<16>(x_ring + slot * X_VECTORS + r * 16 + (x_piece ^ r), x + min(r, rows - 1) * x_stride + chunk * CHUNK + x_piece * 8);
    }
  };

  let_next_kernel_start();
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++)
    if (warp + WARPS * i < chunks) copy_weights(warp + WARPS * i, i);
  await_previous_kernel();  // the weights need not wait for what makes x
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) {
    if (warp + WARPS * i < chunks) copy_x(warp + WARPS * i, i);
    commit_copies();  // the first group also holds all weights so far
  }

  float total[TILES][4] = {};
  int slot = 0;
  for (int chunk = warp; chunk < chunks; chunk += WARPS) {
    const int ahead = chunk + WARPS * (STAGES - 1), free_slot = slot == 0 ? STAGES - 1 : slot - 1;
    if (ahead < chunks) {
      copy_weights(ahead, free_slot);
      copy_x(ahead, free_slot);
    }
    commit_copies();
    await_copies<STAGES - 1>();
    __syncwarp();
    uint4 w[TILES][VECTORS];
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
      for (int v = 0; v < VECTORS; v++) w[t][v] = ring[((slot * TILES + t) * VECTORS + v) * 32];
    const int r = min(lane % 8, X_ROWS - 1);  // sums of columns beyond the rows are not used
    const uint4* xs = x_ring + slot * X_VECTORS + r * 16;
    float sum[TILES][CHAINS][4];
    u32 z[TILES][2], b[4];
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
      if (step % 2 == 0) load_matrices(b, xs + (step * 2 + lane / 8 ^ r));
#pragma unroll
      for (int t = 0; t < TILES; t++) {
        const int word = ((slot * TILES + t) * GROUPS + step / GROUP_STEPS) * 32;
        if (step % GROUP_STEPS == 0) {
          symmetric_points(z[t]);
          if (ZEROS) zero_points(z[t], zero_ring[word] >> 8 * (g % 4));
#pragma unroll
          for (int i = 0; i < 4 * CHAINS; i++) sum[t][i / 4][i % 4] = 0;
        }
        u32 a[4];
        decode(a, w[t], step, z[t]);
        mma(sum[t][step % CHAINS], a, b[step % 2 * 2], b[step % 2 * 2 + 1]);
        if (step % GROUP_STEPS == GROUP_STEPS - 1) {
          const u32 s = GROUP ? scale_ring[word] : 0;
          const float low = GROUP ? low_number(s, SCALE_BF16) : 1, high = GROUP ? high_number(s, SCALE_BF16) : 1;
#pragma unroll
          for (int i = 0; i < 4; i++) total[t][i] += (i < 2 ? low : high) * (CHAINS == 1 ? sum[t][0][i] : sum[t][0][i] + sum[t][CHAINS - 1][i]);
        }
      }
    }
    slot = slot == STAGES - 1 ? 0 : slot + 1;
  }

  await_copies<0>();
  __syncthreads();
  float* sums = (float*)shared;  // [WARPS][TILES][4][32]
#pragma unroll
  for (int t = 0; t < TILES; t++)
#pragma unroll
    for (int i = 0; i < 4; i++) sums[((warp * TILES + t) * 4 + i) * 32 + lane] = total[t][i];
  __syncthreads();
  auto sum_of = [&](int r, int output) {
    const int part = output % 16, at = ((output / 16) * 4 + part / 8 * 2 + r % 2) * 32 + part % 8 * 4 + r / 2;
    float value = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) value += sums[w * TILES * 128 + at];
    if (!GROUP) {
      const u32 s = __ldg(scale + tile_of(output / 16) * 8 + part % 8);
      value *= part < 8 ? low_number(s, SCALE_BF16) : high_number(s, SCALE_BF16);
    }
    return value;
  };
  const int width = 16 * block_tiles, all = outputs / (GATED + 1);
  for (int i = threadIdx.x; i < width * 8; i += 32 * WARPS) {
    const int r = i / width, n = blockIdx.x * width + i % width;
    if (r >= rows || n >= all) continue;
    float value = sum_of(r, i % width);
    if (GATED) value = value / (1 + __expf(-value)) * sum_of(r, width + i % width);
    y[(long long)r * all + n] = (u16)pack2(value, 0);
  }
}
