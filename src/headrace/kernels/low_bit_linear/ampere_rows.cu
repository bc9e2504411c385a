// 9 rows and more where there is no wgmma: y = x W^T by m16n8k16 for BLOCK_ROWS rows of x and 256 outputs a tile.
//
// Products are summed in fp16, on the tensor cores, for one group of inputs at most; those sums times the group's scale are added in float32.
// For consumer cards of compute capability 8.6, 8.9 and 12.0 sum in float32 at half the rate. Weights are (q - zero) 2^-9, exact in fp16, and
// x comes from halves.cu: rows in fp16, each times a power of two such that no sum of a group can overflow.
//
// A worker (work.cuh) is a block of 8 warps. A warp has 32 outputs and all rows of the tile. x and W come through a ring of STAGES chunks,
// which goes on from one tile to the next. While a step of 16 inputs is multiplied the next one's operands are made, from chunk to chunk
// too. Macros: BLOCK_ROWS (16, 32 or 64), STAGES, SPLIT.
#define ACROSS (BLOCK_ROWS / 8)  // eights of rows
#define TILES 2  // of 16 outputs, of a warp
#define BLOCK_TILES (8 * TILES)
#define SUMS (TILES * ACROSS)
#define VECTOR_STEPS (16 / BITS)  // of a lane's 16 bytes of a tile
#define TILE_BYTES (256 * BITS)
#define TILE_VECTORS (TILE_BYTES / 16)
#define TILE_THREADS (256 / BLOCK_TILES)  // that copy a tile
#define WEIGHT_BYTES (BLOCK_TILES * TILE_BYTES)
#define SCALES_AT (WEIGHT_BYTES + BLOCK_ROWS * 256)
#define ZEROS_AT (SCALES_AT + BLOCK_TILES * GROUPS * 32)
#define STAGE_BYTES ((ZEROS_AT + ZEROS * BLOCK_TILES * GROUPS * 8 + 127) / 128 * 128)

__device__ __forceinline__ void mma_in_halves(u32 (&d)[2], const u32 (&a)[4], u32 b0, u32 b1, bool first) {  // first: d is not added to
  const u32 c0 = first ? 0 : d[0], c1 = first ? 0 : d[1];
  asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%8,%9};"
      : "=r"(d[0]), "=r"(d[1]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c0), "r"(c1));
}
__device__ __forceinline__ float2 halves_of(u32 pair) {
  float2 d;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }" : "=f"(d.x), "=f"(d.y) : "r"(pair));
  return d;
}
__device__ __forceinline__ u32 fma_halves(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// A group's scales and zero points for outputs g and g + 8. The low 4 bits of a 16-bit register half are the number q 2^-24, the next four
// q 2^-20: one fma makes them (q - zero) 2^-9. Bytes become the low bits of 1024 + 128 + them, and then whole numbers.
struct HalfGroup {
  u32 offset[2];
  float scale[2];

  __device__ __forceinline__ void set(u32 pair, u32 zero_byte) {
    scale[0] = low_number(pair, SCALE_BF16), scale[1] = high_number(pair, SCALE_BF16);
    offset[0] = ZEROS ? fma_halves((zero_byte & 15) * 0x10001, 0xF800F800u, 0) : 0xA400A400u;  // -8 2^-9
    offset[1] = ZEROS ? fma_halves((zero_byte >> 4) * 0x10001, 0xF800F800u, 0) : 0xA400A400u;
  }
  __device__ __forceinline__ void decode_step(u32 (&a)[4], uint4 v, int step) const {
#if BITS == 4
    const u32 word = step % 4 == 0 ? v.x : step % 4 == 1 ? v.y : step % 4 == 2 ? v.z : v.w, upper = word >> 8;
    a[0] = fma_halves(word & 0x000F000Fu, 0x78007800u, offset[0]);  // 2^15
    a[1] = fma_halves(word & 0x00F000F0u, 0x68006800u, offset[1]);  // 2^11
    a[2] = fma_halves(upper & 0x000F000Fu, 0x78007800u, offset[0]);
    a[3] = fma_halves(upper & 0x00F000F0u, 0x68006800u, offset[1]);
#else
    const u32 near = (step % 2 ? v.z : v.x) ^ 0x80808080u, far = (step % 2 ? v.w : v.y) ^ 0x80808080u;  // a word: 8 inputs apart
#pragma unroll
    for (int i = 0; i < 4; i++)
      a[i] = fma_halves(__byte_perm(i < 2 ? near : far, 0x64646464u, i % 2 ? 0x4341 : 0x4240), 0x3C003C00u, 0xE480E480u);  // less 1152
#endif
  }
};

extern "C" __global__ void __launch_bounds__(256, 1) ampere_rows(
    const uint4* __restrict__ packed, const uint4* __restrict__ scale, const u32* __restrict__ zero, const u16* __restrict__ x,
    const float* __restrict__ units, u16* __restrict__ y, float4* sums, int rows, int outputs, int inputs, int waves, int row_band) {
  extern __shared__ __align__(128) uint4 shared[];
  char* const ring = (char*)shared;
  Work& work = *(Work*)(ring + STAGES * STAGE_BYTES);  // registers are short
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
  const int first_tile = warp * TILES, chunks = inputs / CHUNK, tiles = outputs / 16;
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
    x_from = x + (long long)row * inputs + step * CHUNK + threadIdx.x % 8 * 8;
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
    for (int i = 0; i < (BLOCK_ROWS + 31) / 32; i++)
#pragma unroll
      for (int j = 0; j < 2 && threadIdx.x < 8 * BLOCK_ROWS; j++)
        copy_async<16>(ring + (stage + x_to) + i * 8192 + j * 128, x_from + i * 32 * inputs + j * 64, any && rows_left > i * 32);
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

  // Bytes of a stage:
  u32 own_weights = first_tile * TILE_BYTES + lane * 16;
  u32 own_scales = SCALES_AT + first_tile * GROUPS * 32 + g * 4, own_zeros = ZEROS_AT + first_tile * GROUPS * 8 + g;
  u32 own_x = WEIGHT_BYTES + (lane / 16 * 8 + lane % 8) * 256 + (lane / 8 % 2 ^ lane % 8) * 16;
  asm volatile("" : "+r"(own_weights), "+r"(own_scales), "+r"(own_x), "+r"(weights_to), "+r"(x_to));  // not to be computed for each chunk

  float total[4 * SUMS];  // [TILES][ACROSS][4]
  u32 stage = 0, free_stage = (STAGES - 1) * STAGE_BYTES, sums_of_group[TILES][ACROSS][2];
  u32 a[TILES][4], b[ACROSS / 2][4];  // operands of the step that is multiplied next
  uint4 w[TILES];
  HalfGroup group[TILES];  // of those operands; `scales`: of what sums_of_group has
  float scales[TILES][2];
  auto add_group = [&](int t, int n) {
    float* sum = total + 4 * (t * ACROSS + n);
    const float2 low = halves_of(sums_of_group[t][n][0]), high = halves_of(sums_of_group[t][n][1]);
    const float first = GROUP ? scales[t][0] : 1, second = GROUP ? scales[t][1] : 1;
    sum[0] += low.x * first, sum[1] += low.y * first, sum[2] += high.x * second, sum[3] += high.y * second;
  };
  auto multiply_step = [&](bool first) {  // of a group: the sums before are added, and new ones begun
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
      for (int n = 0; n < ACROSS; n++) {
        if (first) add_group(t, n);
        mma_in_halves(sums_of_group[t][n], a[t], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1], first);
      }
      if (first) scales[t][0] = group[t].scale[0], scales[t][1] = group[t].scale[1];
    }
  };
  auto add_chunk = [&](int unit) {  // its last step is multiplied with the next chunk
    await_copies<STAGES - 2>();
    __syncthreads();
    copy_weights(free_stage, unit + STAGES - 1 < work.count);
    copy_x(free_stage, unit + STAGES - 1 < work.count);
    commit_copies();
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      multiply_step(s % GROUP_STEPS == 1);
#pragma unroll
      for (int n = 0; n < ACROSS; n += 2) load_matrices(b[n / 2], (const uint4*)(ring + (stage + (own_x ^ s * 32)) + n * 2048));  // of 16 rows; a lane names one
#pragma unroll
      for (int t = 0; t < TILES; t++) {
        if (s % VECTOR_STEPS == 0) w[t] = *(const uint4*)(ring + (stage + own_weights + t * TILE_BYTES) + s / VECTOR_STEPS * 512);
        if (s % GROUP_STEPS == 0) {
          const u32 pair = GROUP ? *(const u32*)(ring + (stage + own_scales + t * GROUPS * 32) + s / GROUP_STEPS * 32) : 0;
          group[t].set(pair, ZEROS ? *(const unsigned char*)(ring + (stage + own_zeros + t * GROUPS * 8) + s / GROUP_STEPS * 8) : 0);
        }
        group[t].decode_step(a[t], w[t], s);
      }
    }
    go_on_to(unit + STAGES);
    free_stage = stage;
    stage = stage == (STAGES - 1) * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
  };

  const Shared<SUMS, 4, 8> shared_sums{work, sums + warp * SUMS * 32 + lane, 8 * SUMS * 32};
  auto store = [&](float4 sum, int tile, int i) {
    int row_block, output_block;
    work.blocks(tile, row_block, output_block);
    const int row = row_block * BLOCK_ROWS + i % ACROSS * 8;
    const float2 unit = *(const float2*)(units + row + lane % 4 * 2);
    sum.x *= unit.x, sum.y *= unit.y, sum.z *= unit.x, sum.w *= unit.y;
    target.store(sum, row, output_block * BLOCK_TILES + first_tile + i / ACROSS);
  };
  for (int unit = 0; unit < work.count;) {
    const int begin = unit;
    int tile, from;
    work.place(begin, tile, from);
    const int end = unit + min(chunks - from, work.count - unit);
#pragma unroll
    for (int i = 0; i < 4 * SUMS; i++) total[i] = 0, sums_of_group[i / 4 / ACROSS][i / 4 % ACROSS][i % 2] = 0;
#pragma unroll
    for (int i = 0; i < 4 * TILES; i++) a[i / 4][i % 4] = 0, scales[i / 4][i % 2] = 0;  // nothing is multiplied with the first chunk
#pragma unroll
    for (int i = 0; i < 2 * ACROSS; i++) b[i / 4][i % 4] = 0;
    for (; unit < end; unit++) add_chunk(unit);
    multiply_step(false);
#pragma unroll
    for (int i = 0; i < SUMS; i++) add_group(i / ACROSS, i % ACROSS);
    work.place(begin, tile, from);
    if (!shared_sums.collect(total, tile, from, end - begin)) continue;
#pragma unroll
    for (int i = 0; i < SUMS; i++) store(make_float4(total[4 * i], total[4 * i + 1], total[4 * i + 2], total[4 * i + 3]), tile, i);
  }
  shared_sums.finish(store);
}
