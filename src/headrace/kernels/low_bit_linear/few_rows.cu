// 1 to 8 rows of activations: y = x W^T, reading W once at the memory's rate.
//
// The weights are the A operand of m16n8k16 and the rows of x its 8 columns. A block has TILES tiles of 16 outputs and one of
// gridDim.y parts of the inputs, of which a warp takes every WARPS-th chunk, through a ring of STAGES chunks of its own, so the loop
// has no barrier. The warps' sums are added in their order at the end. Parts but the last leave theirs in `parts` for the last, each
// with a flag in `raised`, which is zero between kernels; the last has the highest blockIdx, so it waits only for blocks that are there.
// With several tiles, codes of 4 bits are multiplied as MAGIC + code, and (MAGIC + zero point) times the sum of x is taken off the
// sums: one more mma for all tiles in place of four subtractions for each step of each.
// Macros: TILES, WARPS, STAGES, X_ROWS (1, 2, 4 or 8, at least the rows), GATED (1: the first half of the outputs is a gate, as are the
// first half of a block's tiles: y [rows, outputs / 2] = silu(gate) times the other half), NORMED, ADDED (around.cuh), BESIDE (1: the first
// beside.parts * beside.outputs / 16 blocks of a row of the grid make another product of x, see few_outputs.cuh).
#define CHAINS (TILES == 1 ? 2 : 1)  // independent sums of a tile, to hide the latency of mma
#define TILE_PIECES (VECTORS * 32)
#define X_AT (TILES * TILE_PIECES)  // in a stage: weights, x, scales, zero points
#define SCALES_AT (X_AT + X_ROWS * 16)
#define ZEROS_AT (SCALES_AT + TILES * GROUPS * 2)
#define STAGE_PIECES ((ZEROS_AT + (ZEROS ? (TILES * GROUPS + 1) / 2 : 0) + 7) / 8 * 8)  // whole lines, or copies take twice the requests
#define UNSHIFTED (BITS == 4 && TILES > 1)
#define OUTPUTS (16 * TILES)
#define SUMS (X_ROWS * OUTPUTS)
#define WIDTH (OUTPUTS / (GATED + 1))  // of y
#define ITEMS ((X_ROWS * WIDTH + 32 * WARPS - 1) / (32 * WARPS))

__device__ __forceinline__ void codes(u32 (&a)[4], uint4 v, int step) {  // of 4 bits, as the numbers MAGIC + code
  const u32 w = step % 4 == 0 ? v.x : step % 4 == 1 ? v.y : step % 4 == 2 ? v.z : v.w;
#pragma unroll
  for (int i = 0; i < 4; i++) a[i] = select_or<0x000F000Fu>(w >> 4 * i, MAGIC);
}
__device__ __forceinline__ void load_b(u32 (&b)[4], const uint4* row) {  // load_matrices that the compiler may move among other loads
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(shared_address(row)));
}
extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT) few_rows(
    const uint4* __restrict__ packed, const u32* __restrict__ scale, const u32* __restrict__ zero, const u16* __restrict__ x,
    u16* __restrict__ y, float* parts, u32* raised, int rows, int outputs, int inputs, long long x_stride, Normed normed, Added added,
    FewOutputs beside) {
  extern __shared__ __align__(128) uint4 shared[];
  __shared__ float factors[X_ROWS];
  const int first_block = BESIDE ? beside.outputs / 16 * beside.parts : 0, block = (int)blockIdx.x - first_block;
  if (block < 0) {
    if (blockIdx.y == 0)
      few_outputs_block<8>(shared, factors, beside, normed, x, blockIdx.x % (beside.outputs / 16), blockIdx.x / (beside.outputs / 16), 0,
                           rows, inputs, x_stride);
    else
      await_previous_kernel();
    return;
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int chunks = inputs / CHUNK, tiles = outputs / (GATED ? 32 : 16), block_tiles = TILES / (GATED + 1);
  const int last_part = gridDim.y - 1, part = blockIdx.y;
  const int begin = chunks * part / (last_part + 1) + warp, end = chunks * (part + 1) / (last_part + 1);
  auto tile_of = [&](int t) {  // with GATED the second half of the tiles have the other half of the outputs
    const int half = GATED && t >= block_tiles;
    return min(block * block_tiles + t - half * block_tiles, tiles - 1) + half * tiles;
  };

  // What the next copies are of: a lane's own places, moved on by WARPS chunks each time.
  const uint4* weights_from[TILES];
#pragma unroll
  for (int t = 0; t < TILES; t++) weights_from[t] = packed + (u32)((tile_of(t) * chunks + begin) * TILE_PIECES + lane);
  const int of_tile = GROUPS + !GROUPS;  // 16 bytes of scales are half a group
  const uint4* scales_from = (const uint4*)scale + (tile_of(lane / of_tile / 2) * chunks + begin) * of_tile * 2 + lane % (2 * of_tile);
  const uint2* zeros_from = (const uint2*)zero + (tile_of(lane / of_tile) * chunks + begin) * of_tile + lane % of_tile;
  const u16* x_from[(X_ROWS + 1) / 2];
#pragma unroll
  for (int j = 0; j < (X_ROWS + 1) / 2; j++)
    x_from[j] = x + min(lane / 16 + 2 * j, rows - 1) * x_stride + begin * CHUNK + lane % 16 * 8;
  auto copy_weights = [&](uint4* stage) {
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
      for (int v = 0; v < VECTORS; v++) copy_async<16>(stage + t * TILE_PIECES + v * 32 + lane, weights_from[t] + v * 32);
      weights_from[t] += WARPS * TILE_PIECES;
    }
    if (GROUPS) {
      if (lane < TILES * GROUPS * 2) copy_async<16>(stage + SCALES_AT + lane, scales_from);
      scales_from += WARPS * GROUPS * 2;
    }
    if (ZEROS) {
      if (lane < TILES * GROUPS) copy_async<8>((uint2*)(stage + ZEROS_AT) + lane, zeros_from);
      zeros_from += WARPS * GROUPS;
    }
  };
  auto copy_x = [&](uint4* stage) {  // pieces of 8 numbers, shuffled within a row against bank conflicts
#pragma unroll
    for (int j = 0; j < (X_ROWS + 1) / 2; j++) {
      const int r = lane / 16 + 2 * j;
      if (X_ROWS > 1 || lane < 16) copy_async<16>(stage + X_AT + r * 16 + (lane % 16 ^ r % 8), x_from[j]);
      x_from[j] += WARPS * CHUNK;
    }
  };

  uint4* const ring = shared + warp * STAGES * STAGE_PIECES;
  let_next_kernel_start();
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++)
    if (begin + WARPS * i < end) copy_weights(ring + i * STAGE_PIECES);
  await_previous_kernel();  // the weights need not wait for what makes x
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) {
    if (begin + WARPS * i < end) copy_x(ring + i * STAGE_PIECES);
    commit_copies();  // the first group also holds all weights so far
  }

  if (NORMED && part == last_part) row_factors(factors, normed, 0, rows, inputs, warp, WARPS);
  const int all = outputs / (GATED + 1);
  u32 residual[ITEMS];
  float weight[ITEMS];
#pragma unroll
  for (int item = 0; item < ITEMS; item++) {  // read early, and nothing where there is no output
    const int i = threadIdx.x + item * 32 * WARPS, r = i / WIDTH, n = block * WIDTH + i % WIDTH;
    const bool is_read = ADDED && part == last_part && r < rows && n < all;
    residual[item] = is_read ? added.residual[(long long)r * all + n] : 0;
    weight[item] = is_read ? added.weight[n] + added.offset : 0;
  }
  float total[TILES][4] = {};
  int at = 0, free_at = (STAGES - 1) * STAGE_PIECES;
  const int x_row = min(lane % 8, X_ROWS - 1);  // sums of columns beyond the rows are not used
#pragma unroll 1
  for (int chunk = begin; chunk < end; chunk += WARPS) {
    if (chunk + WARPS * (STAGES - 1) < end) {
      copy_weights(ring + free_at);
      copy_x(ring + free_at);
    }
    commit_copies();
    await_copies<STAGES - 1>();
    __syncwarp();
    const uint4* stage = ring + at;
    const u32* scales = (const u32*)(stage + SCALES_AT) + g;
    const u32* zeros = (const u32*)(stage + ZEROS_AT) + g / 4;
    uint4 w[TILES];
    u32 b[4], z[TILES][2];
    float sum[TILES][CHAINS][4], x_sum[4];
    const u32 one = BF16 ? 0x3F803F80u : 0x3C003C00u, ones[4] = {one, one, one, one};
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
      const bool first = step % GROUP_STEPS == 0, last = step % GROUP_STEPS == GROUP_STEPS - 1;
      if (step % (16 / BITS) == 0)
#pragma unroll
        for (int t = 0; t < TILES; t++) w[t] = stage[t * TILE_PIECES + step * BITS / 16 * 32 + lane];
      if (step % 2 == 0) load_b(b, stage + X_AT + x_row * 16 + (step * 2 + lane / 8 ^ x_row));
      if (first) x_sum[0] = x_sum[1] = x_sum[2] = x_sum[3] = 0;
      if (UNSHIFTED) mma(x_sum, ones, b[step % 2 * 2], b[step % 2 * 2 + 1]);
#pragma unroll
      for (int t = 0; t < TILES; t++) {
        const int word = t * GROUPS + step / GROUP_STEPS;
        if (first) {
          symmetric_points(z[t]);
          if (ZEROS) zero_points(z[t], zeros[word * 2] >> 8 * (g % 4));
#pragma unroll
          for (int i = 0; i < 4 * CHAINS; i++) sum[t][i / 4][i % 4] = 0;
        }
        u32 a[4];
        if (UNSHIFTED)
          codes(a, w[t], step);
        else
          decode(a, w[t], step, z[t]);
        mma(sum[t][step % CHAINS], a, b[step % 2 * 2], b[step % 2 * 2 + 1]);
        if (last) {
          const u32 s = GROUP ? scales[word * 8] : 0;
          const float by[2] = {GROUP ? low_number(s, SCALE_BF16) : 1, GROUP ? high_number(s, SCALE_BF16) : 1};
          const float point[2] = {low_number(z[t][0], BF16), low_number(z[t][1], BF16)};
#pragma unroll
          for (int i = 0; i < 4; i++) {
            float v = CHAINS == 1 ? sum[t][0][i] : sum[t][0][i] + sum[t][CHAINS - 1][i];
            if (UNSHIFTED) v -= point[i / 2] * x_sum[i % 2];
            total[t][i] += by[i / 2] * v;
          }
        }
      }
    }
    __syncwarp();  // all have read what is written over next
    free_at = at;
    at = at == (STAGES - 1) * STAGE_PIECES ? 0 : at + STAGE_PIECES;
  }

  await_copies<0>();
  __syncthreads();
  float* sums = (float*)shared;  // [WARPS][X_ROWS][OUTPUTS]
#pragma unroll
  for (int i = 0; i < TILES * 4; i++) {
    const int r = 2 * c + i % 2;
    if (r < X_ROWS) sums[warp * SUMS + r * OUTPUTS + i / 4 * 16 + g + i % 4 / 2 * 8] = total[i / 4][i % 4];
  }
  if (part == last_part)
    for (int p = threadIdx.x; p < last_part; p += 32 * WARPS) await_and_lower(raised + block * last_part + p);
  __syncthreads();
  parts += block * last_part * SUMS;
  auto sum_of = [&](int i) {
    float value = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) value += sums[w * SUMS + i];
    return value;
  };
  if (part < last_part) {
    for (int i = threadIdx.x; i < rows * OUTPUTS; i += 32 * WARPS) parts[part * SUMS + i] = sum_of(i);
    __syncthreads();
    if (threadIdx.x == 0) raise(raised + block * last_part + part);
    return;
  }
  auto output = [&](int r, int o) {
    float value = 0;
    for (int p = 0; p < last_part; p++) value += __ldcg(parts + p * SUMS + r * OUTPUTS + o);
    value += sum_of(r * OUTPUTS + o);
    if (!GROUP) {
      const u32 s = __ldg(scale + tile_of(o / 16) * 8 + o % 8);
      value *= o % 16 < 8 ? low_number(s, SCALE_BF16) : high_number(s, SCALE_BF16);
    }
    return NORMED ? value * factors[r] : value;
  };
#pragma unroll
  for (int item = 0; item < ITEMS; item++) {
    const int i = threadIdx.x + item * 32 * WARPS, r = i / WIDTH, o = i % WIDTH, n = block * WIDTH + o;
    const bool is_there = r < rows && n < all;
    const long long place = (long long)r * all + n;
    float value = is_there ? output(r, o) : 0;
    if (GATED && is_there) value = value / (1 + __expf(-value)) * output(r, WIDTH + o);
    if (ADDED) {
      const u32 total = pack2(value + low_number(residual[item], BF16), 0);
      value = low_number(total, BF16);
      const float square = sum_of_lanes(value * value, 16);
      if (is_there) added.total[place] = (u16)total;
      if (is_there && lane % 16 == 0) *added.squares.at(r, n / 16) = square;
      value *= weight[item];
    }
    if (is_there) y[place] = (u16)pack2(value, 0);
  }
}
