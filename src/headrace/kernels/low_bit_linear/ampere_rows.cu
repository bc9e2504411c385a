// 17 rows and more where there is no wgmma: y = x W^T by m16n8k16 for BLOCK_ROWS rows of x and BLOCK_TILES x 16 outputs a tile.
//
// A worker (work.cuh) is a block of 8 warps. A warp has 64 outputs, all rows of the tile, and one of K_PARTS equal parts of every chunk of
// inputs, so that weights are decoded once and what is read of x in shared memory serves 64 outputs; warps of the same outputs add their
// sums at the tile's end. x and W come through a ring of STAGES chunks, which goes on from one tile to the next. While a step of 16 inputs
// is multiplied the next one's operands are made, from chunk to chunk too. Macros: BLOCK_ROWS (32 or 64), K_PARTS (2 or 4), STAGES, SPLIT.
#define ACROSS (BLOCK_ROWS / 8)  // eights of rows
#define OUTPUT_WARPS (8 / K_PARTS)
#define BLOCK_TILES (4 * OUTPUT_WARPS)
#define OWN_TILES (4 / K_PARTS)  // of a warp's four: those whose sums it finishes
#define OWN_SUMS (OWN_TILES * ACROSS)
#define PART_STEPS (STEPS / K_PARTS)
#define PART_BYTES (8 * BITS / K_PARTS)  // of a lane, for one tile of 16 outputs
#define PART_VECTORS ((PART_BYTES + 15) / 16)
#define TILE_BYTES (256 * BITS)
#define TILE_VECTORS (TILE_BYTES / 16)
#define TILE_THREADS (256 / BLOCK_TILES)  // that copy a tile
#define WEIGHT_BYTES (BLOCK_TILES * TILE_BYTES)
#define SCALES_AT (WEIGHT_BYTES + BLOCK_ROWS * 256)
#define ZEROS_AT (SCALES_AT + BLOCK_TILES * GROUPS * 32)
#define STAGE_BYTES ((ZEROS_AT + ZEROS * BLOCK_TILES * GROUPS * 8 + 127) / 128 * 128)
#define EXCHANGED (STAGE_BYTES >= 32768 && OWN_SUMS >= 8 ? 8 : 4)  // sums of a lane that a stage has room for

extern "C" __global__ void __launch_bounds__(256, 1) ampere_rows(
    const uint4* __restrict__ packed, const uint4* __restrict__ scale, const u32* __restrict__ zero, const u16* __restrict__ x,
    u16* __restrict__ y, float4* sums, int rows, int outputs, int inputs, long long x_stride, int waves, int row_band) {
  extern __shared__ __align__(128) uint4 shared[];
  char* const ring = (char*)shared;
  Work& work = *(Work*)(ring + STAGES * STAGE_BYTES);  // registers are short
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
  const int first_tile = warp % OUTPUT_WARPS * 4, part = warp / OUTPUT_WARPS;
  const int chunks = inputs / CHUNK, tiles = outputs / 16;
  if (threadIdx.x == 0)
    work = Work(blockIdx.x, gridDim.x, (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, (tiles + BLOCK_TILES - 1) / BLOCK_TILES, chunks, waves, row_band);
  __syncthreads();
  const Target target{y, (const u32*)scale, rows, outputs};

  // What this thread copies next, `left` chunks of a tile: vectors of one tile of W and of rows 32 apart of x, of scales, words of zero points.
  const uint4 *weights_from, *scales_from;
  const u32* zeros_from;
  const u16* x_from;
  int left, rows_left;
  u32 weights_to = threadIdx.x / TILE_THREADS * TILE_BYTES + threadIdx.x % TILE_THREADS * 16;
  u32 x_to = WEIGHT_BYTES + threadIdx.x / 8 * 256 + (threadIdx.x ^ threadIdx.x / 8) % 8 * 16;  // shuffled against bank conflicts
  auto go_to = [&](int unit) {
    int tile, step, row_block, output_block;
    work.place(unit, tile, step);
    work.blocks(tile, row_block, output_block);
    left = min(chunks - step, (unit < work.whole ? work.whole : work.count) - unit);
    auto at = [&](int size) {  // tiles beyond the last are any, their sums are not stored
      return (long long)(min(output_block * BLOCK_TILES + (int)threadIdx.x / size, tiles - 1) * chunks + step);
    };
    weights_from = packed + at(TILE_THREADS) * TILE_VECTORS + threadIdx.x % TILE_THREADS;
    if (GROUP) scales_from = scale + at(2 * GROUPS + !GROUP) * 2 * GROUPS + threadIdx.x % (2 * GROUPS + !GROUP);
    if (ZEROS) zeros_from = zero + at(2 * GROUPS + !GROUP) * 2 * GROUPS + threadIdx.x % (2 * GROUPS + !GROUP);
    const int row = row_block * BLOCK_ROWS + threadIdx.x / 8;
    rows_left = rows - row;
    x_from = x + row * x_stride + step * CHUNK + threadIdx.x % 8 * 8;
  };
  auto go_on_to = [&](int unit) {
    weights_from += TILE_VECTORS, x_from += CHUNK;
    if (GROUP) scales_from += 2 * GROUPS;
    if (ZEROS) zeros_from += 2 * GROUPS;
    if (--left == 0 && unit < work.count) go_to(unit);
  };
  auto copy_weights = [&](u32 stage, bool any) {
#pragma unroll
    for (int j = 0; j < TILE_VECTORS / TILE_THREADS; j++)
      copy_async<16>(ring + (stage + weights_to) + j * TILE_THREADS * 16, weights_from + j * TILE_THREADS, any);
    if (GROUP && threadIdx.x < BLOCK_TILES * GROUPS * 2) copy_async<16>(ring + stage + SCALES_AT + threadIdx.x * 16, scales_from, any);
    if (ZEROS && threadIdx.x < BLOCK_TILES * GROUPS * 2) copy_async<4>(ring + stage + ZEROS_AT + threadIdx.x * 4, zeros_from, any);
  };
  auto copy_x = [&](u32 stage, bool any) {
#pragma unroll
    for (int i = 0; i < BLOCK_ROWS / 32; i++)
#pragma unroll
      for (int j = 0; j < 2; j++)
        copy_async<16>(ring + (stage + x_to) + i * 8192 + j * 128, x_from + i * 32 * x_stride + j * 64, any && rows_left > i * 32);
  };

  let_next_kernel_start();
  go_to(0);
#pragma unroll
  for (int unit = 0; unit < STAGES - 1; go_on_to(++unit)) copy_weights(unit * STAGE_BYTES, unit < work.count);
  await_previous_kernel();  // the weights need not wait for what makes x
  go_to(0);
#pragma unroll
  for (int unit = 0; unit < STAGES - 1; go_on_to(++unit)) {
    copy_x(unit * STAGE_BYTES, unit < work.count);
    commit_copies();  // the first group also holds all weights so far
  }

  // Tiles are in a warp's own order, those first that it finishes: tile t is its t ^ part OWN_TILES th. Bytes of a stage:
  const int own_tile = first_tile + part * OWN_TILES, own_group = GROUP ? part * PART_STEPS / GROUP_STEPS : 0;
  u32 own_weights = own_tile * TILE_BYTES + part * PART_BYTES / 16 * 512 + part * PART_BYTES % 16 + lane * 16;
  u32 own_scales = SCALES_AT + (own_tile * GROUPS + own_group) * 32 + g * 4, own_zeros = ZEROS_AT + (own_tile * GROUPS + own_group) * 8 + g;
  u32 own_x = WEIGHT_BYTES + (lane / 16 * 8 + lane % 8) * 256 + (part * PART_STEPS * 2 + lane / 8 % 2 ^ lane % 8) * 16;
  asm volatile("" : "+r"(own_weights), "+r"(own_scales), "+r"(own_x), "+r"(weights_to), "+r"(x_to));  // not to be computed for each chunk

  float total[16 * ACROSS];  // [4 tiles][ACROSS][4]
  u32 stage = 0, free_stage = (STAGES - 1) * STAGE_BYTES, a[4][4], b[ACROSS / 2][4];  // operands of the step that is multiplied next
  auto multiply_step = [&] {
#pragma unroll
    for (int t = 0; t < 4; t++)
#pragma unroll
      for (int n = 0; n < ACROSS; n++) mma(*(float(*)[4])(total + 4 * (t * ACROSS + n)), a[t], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
  };
  GroupScale group[4];
  if (!GROUP)
#pragma unroll
    for (int t = 0; t < 4; t++) group[t].set(0, 0);
  auto add_chunk = [&](int unit) {  // its last step is multiplied with the next chunk
    await_copies<STAGES - 2>();
    __syncthreads();
    uint4 w[4][PART_VECTORS];
#pragma unroll
    for (int t = 0; t < 4; t++) {
      const char* const from = ring + (stage + (own_weights ^ t * TILE_BYTES));
      if (PART_BYTES == 8) {
        const uint2 half = *(const uint2*)from;
        w[t][0] = make_uint4(half.x, half.y, 0, 0);
      } else
#pragma unroll
        for (int i = 0; i < PART_VECTORS; i++) w[t][i] = *(const uint4*)(from + i * 512);
    }
    copy_weights(free_stage, unit + STAGES - 1 < work.count);
    copy_x(free_stage, unit + STAGES - 1 < work.count);
    commit_copies();
#pragma unroll
    for (int s = 0; s < PART_STEPS; s++) {
      multiply_step();
#pragma unroll
      for (int n = 0; n < ACROSS; n += 2) load_matrices(b[n / 2], (const uint4*)(ring + (stage + (own_x ^ s * 32)) + n * 2048));  // of 16 rows; a lane names one
#pragma unroll
      for (int t = 0; t < 4; t++) {
        if (GROUP && s % GROUP_STEPS == 0) {
          const u32 pair = *(const u32*)(ring + (stage + (own_scales ^ t * GROUPS * 32)) + s / GROUP_STEPS * 32);
          group[t].set(pair, ZEROS ? *(const unsigned char*)(ring + (stage + (own_zeros ^ t * GROUPS * 8)) + s / GROUP_STEPS * 8) : 0);
        }
        group[t].decode_step(a[t], w[t], s);
      }
    }
    go_on_to(unit + STAGES);
    free_stage = stage;
    stage = stage == (STAGES - 1) * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
  };

  auto add_parts = [&] {  // through the stage that was used last: what other warps finish is sent, what is this one's is received
    float4* const room = (float4*)(ring + free_stage) + lane;
#pragma unroll
    for (int away = 1; away < K_PARTS; away++)
#pragma unroll
      for (int first = 0; first < OWN_SUMS; first += EXCHANGED) {
        float4* const to = room + (warp % OUTPUT_WARPS + (part ^ away) * OUTPUT_WARPS) * EXCHANGED * 32;
        const float4* const from = room + warp * EXCHANGED * 32;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EXCHANGED; i++) {
          const float* sum = total + 4 * (away * OWN_SUMS + first + i);
          to[i * 32] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EXCHANGED; i++) {
          const float4 v = from[i * 32];
          float* sum = total + 4 * (first + i);
          sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
        }
      }
    if (SMALL)
#pragma unroll
      for (int i = 0; i < 4 * OWN_SUMS; i++) total[i] *= SMALL_INVERSE;
  };
  const Shared<OWN_SUMS, 4, 8> shared_sums{work, sums + warp * OWN_SUMS * 32 + lane, 8 * OWN_SUMS * 32};
  auto store = [&](float4 sum, int tile, int i) {
    int row_block, output_block;
    work.blocks(tile, row_block, output_block);
    target.store(sum, row_block * BLOCK_ROWS + i % ACROSS * 8, output_block * BLOCK_TILES + own_tile + i / ACROSS);
  };
  for (int unit = 0; unit < work.count;) {
    const int begin = unit;
    int tile, from;
    work.place(begin, tile, from);
    const int end = unit + min(chunks - from, work.count - unit);
#pragma unroll
    for (int i = 0; i < 16 * ACROSS; i++) total[i] = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) a[i / 4][i % 4] = 0;  // nothing is multiplied with the first chunk
#pragma unroll
    for (int i = 0; i < 2 * ACROSS; i++) b[i / 4][i % 4] = 0;
    for (; unit < end; unit++) add_chunk(unit);
    multiply_step();
    add_parts();
    work.place(begin, tile, from);
    if (!shared_sums.collect(total, tile, from, end - begin)) continue;
#pragma unroll
    for (int i = 0; i < OWN_SUMS; i++) store(make_float4(total[4 * i], total[4 * i + 1], total[4 * i + 2], total[4 * i + 3]), tile, i);
  }
  shared_sums.finish(store);
}
