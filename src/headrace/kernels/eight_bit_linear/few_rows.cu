// 1 to 8 rows of codes: y = x W^T, reading W once at the memory's rate.
//
// The weights are the A operand of m16n8k32 and the rows of x its 8 columns. A warp owns TILES tiles of 16 outputs and every WARPS-th
// chunk of the inputs, in a ring of STAGES chunks of its own, so the loop has no barrier. The warps' sums are added in their order at the
// end. Macros: those of the preludes, TILES, WARPS, STAGES, X_ROWS (1, 2, 4 or 8, at least the rows).
#define PARTS_OF_CHUNK (GROUP ? GROUPS : 1)
#define WORDS (TILES * GROUPS)   // of scales, for a lane and stage
#define X_VECTORS (X_ROWS * 8)   // of a stage
#define PART_STEPS (4 / PARTS_OF_CHUNK)

extern "C" __global__ void __launch_bounds__(32 * WARPS) few_rows(
    const uint4* __restrict__ packed, const u32* __restrict__ scale, const u32* __restrict__ zero, const uint4* __restrict__ x,
    const float* __restrict__ x_scale, u16* __restrict__ y, int rows, int outputs, int inputs) {
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
  const int chunks = inputs / CHUNK, tiles = outputs / 16, first_tile = blockIdx.x * TILES;
  uint4* ring = shared + warp * STAGES * TILES * VECTORS * 32 + lane;
  uint4* x_ring = shared + WARPS * STAGES * TILES * VECTORS * 32 + warp * STAGES * X_VECTORS;
  u32* scale_ring = (u32*)(shared + WARPS * STAGES * (TILES * VECTORS * 32 + X_VECTORS)) + warp * STAGES * WORDS * 32 + lane;
  u32* zero_ring = scale_ring + WARPS * STAGES * WORDS * 32;

  auto copy_weights = [&](int chunk, int slot) {
#pragma unroll
    for (int t = 0; t < TILES; t++) {
      const u32 at = min(first_tile + t, tiles - 1) * chunks + chunk;
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
  auto copy_x = [&](int chunk, int slot) {  // rows lie together, as they will in shared memory
#pragma unroll
    for (int i = 0; i < (X_VECTORS + 31) / 32; i++)
      if (X_VECTORS % 32 == 0 || lane < X_VECTORS) copy_async<16>(x_ring + slot * X_VECTORS + i * 32 + lane, x + chunk * 512 + i * 32 + lane);
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

#if WHOLE
  int total[TILES][4] = {};
#else
  float total[TILES][4] = {};
#endif
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
    const uint4* xs = x_ring + slot * X_VECTORS + r * 8;
    u32 b[2][4];
#pragma unroll
    for (int i = 0; i < 2; i++) load_matrices(b[i], xs + (i * 4 + lane / 8 ^ r));
    Columns columns[4];
#pragma unroll
    for (int step = 0; step < 4; step++) columns[step] = columns_of(b[step / 2][step % 2 * 2], b[step / 2][step % 2 * 2 + 1]);
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
      for (int part = 0; part < PARTS_OF_CHUNK; part++) {
        const int word = ((slot * TILES + t) * GROUPS + part) * 32;
        const u32 points = ZEROS ? zero_ring[word] >> 8 * (g % 4) & 255 : 0x88;
#if WHOLE
        int(&sum)[4] = total[t];
#else
        Sum sum[4] = {};
#endif
#pragma unroll
        for (int step = part * PART_STEPS; step < (part + 1) * PART_STEPS; step++) {
          u32 a[A_REGISTERS];
          decode_operand(a, w[t], step, points);
          multiply_codes(sum, a, columns[step]);
        }
#if !WHOLE
        const u32 s = GROUP ? scale_ring[word] : 0;
        const float low = GROUP ? low_number(s, SCALE_BF16) : 1, high = GROUP ? high_number(s, SCALE_BF16) : 1;
#pragma unroll
        for (int i = 0; i < 4; i++) total[t][i] += (i < 2 ? low : high) * (float)sum[i];
#endif
      }
    slot = slot == STAGES - 1 ? 0 : slot + 1;
  }

  await_copies<0>();
  __syncthreads();
  float* sums = (float*)shared;  // [WARPS][TILES][4][32]
#pragma unroll
  for (int t = 0; t < TILES; t++)
#pragma unroll
    for (int i = 0; i < 4; i++) sums[((warp * TILES + t) * 4 + i) * 32 + lane] = (float)total[t][i];
  __syncthreads();
  for (int i = threadIdx.x; i < TILES * 128; i += 32 * WARPS) {
    const int r = i / (TILES * 16), output = i % (TILES * 16), n = first_tile * 16 + output;
    const int part = output % 16, at = ((output / 16) * 4 + part / 8 * 2 + r % 2) * 32 + part % 8 * 4 + r / 2;
    if (r >= rows || n >= outputs) continue;
    float value = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) value += sums[w * TILES * 128 + at];
    if (!GROUP) {
      const u32 s = __ldg(scale + n / 16 * 8 + n % 8);
      value *= n % 16 < 8 ? low_number(s, SCALE_BF16) : high_number(s, SCALE_BF16);
    }
    y[(long long)r * outputs + n] = (u16)pack2(value * (CODE_UNIT * x_scale[r]), 0);
  }
}
