// 9 rows and more on Hopper (sm_90a): y = x W^T by wgmma for BLOCK_ROWS rows of x (its N) and TILES times 64 outputs a warpgroup (its M).
//
// A worker (work.cuh) is a block: WARPGROUPS that multiply, and a warp that copies. It fills a ring of STAGES, each a chunk of the inputs,
// which goes on from one tile to the next: x by a tensor map with the 128-byte swizzle, weights and scales of all warps as they lie. The
// weights are the A operand in registers: the warp that owns TILES times 16 outputs decodes and scales a part of a chunk (all of it, or
// half) in the activations' type while other warps' products run. x is B.
//
// Macros: BLOCK_ROWS (a multiple of 8), WARPGROUPS, TILES (of a warp, 1 or 2), PARTS_OF_CHUNK (1 or 2), STAGES, RESIDENT (blocks of a
// processor), REGISTERS and COPY_REGISTERS (of a thread that multiplies, and copies), SPLIT (work.cuh), NORMED and ADDED (around.cuh; one
// block of rows), GATED (the first half of the outputs is a gate: y [rows, outputs / 2] = silu(gate) times the other half; with GROUP,
// without SPLIT and ADDED), BESIDE (the last blocks are hopper_beside.cuh's); `multiply` is written by the host, for an accumulator of BLOCK_ROWS / 2
// numbers a thread.
//
// With GATED a warp has one tile of the gate and one of what it gates, and mixes their fragments: a product has 8 outputs of each, and a
// thread's sums both of the numbers that make one of y.

// What a warp does with its sums of 8 rows and 16 outputs (a piece: block of rows + BLOCKS tile), and with what stands around the product.
struct Finish {
  const Work& work;
  const Target& target;
  const Added& added;
  float* factors;  // of a norm's rows; behind them, with ADDED, squares [TILES, WARPS, BLOCK_ROWS]
  int warp, first_row, first_tile;
  float4 weight, second_weight;  // of the tiles

  __device__ __forceinline__ int tile(int piece) const { return first_tile + piece / BLOCKS * WARPS; }
  __device__ __forceinline__ int row(int piece) const { return first_row + piece % BLOCKS * 8; }
  __device__ __forceinline__ void begin(int block_tile) {
    int row_block, output_block;
    work.blocks(block_tile, row_block, output_block);
    first_row = row_block * BLOCK_ROWS, first_tile = output_block * BLOCK_TILES / HALVES + warp;
    if (ADDED) weight = weight_of(0), second_weight = weight_of((TILES - 1) * BLOCKS);
  }
  __device__ __forceinline__ float4 weight_of(int piece) const {
    const int its_tile = tile(piece);
    return its_tile * 16 < target.outputs ? *(const float4*)(added.weight + target.output(its_tile)) : make_float4(0, 0, 0, 0);
  }
  __device__ __forceinline__ uint2 ask(int piece) const {  // for what is added
    if (!ADDED || tile(piece) * 16 >= target.outputs || !target.is_row(row(piece))) return make_uint2(0, 0);
    uint2 four;
    const u16* from = added.residual + target.place(row(piece), tile(piece));
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(four.x), "=r"(four.y) : "l"(from));
    return four;
  }
  __device__ __forceinline__ void store(float4 sum, int piece, uint2 residual) const {
    sum = with_factors(sum, factors, piece % BLOCKS);
    if (ADDED)
      add(sum, piece, residual);
    else
      target.store(sum, row(piece), tile(piece));
  }
  // With GATED: sums of outputs g of a gate's tile (x, y) and of a gated one's, then of outputs g + 8 of both.
  __device__ __forceinline__ void gate(float4 low, float4 high, int block) const {
    low = with_factors(low, factors, block), high = with_factors(high, factors, block);
    const float4 y = make_float4(silu(low.x) * low.z, silu(low.y) * low.w, silu(high.x) * high.z, silu(high.y) * high.w);
    target.store_as_is(y, row(block), first_tile);
  }
  __device__ __forceinline__ void add(float4 sum, int piece, uint2 residual) const {
    const int its_tile = tile(piece);
    float square = 0;
    if (its_tile * 16 < target.outputs) {
      const uint2 added_to = from_four(residual);
      sum = target.scaled(sum, its_tile);
      sum.x += low_number(added_to.x, BF16), sum.y += high_number(added_to.x, BF16);
      sum.z += low_number(added_to.y, BF16), sum.w += high_number(added_to.y, BF16);
      const uint2 total = target.rounded(sum);
      const float a = low_number(total.x, BF16), b = high_number(total.x, BF16), c = low_number(total.y, BF16), d = high_number(total.y, BF16);
      square = sum_of_lanes(a * a + b * b + c * c + d * d, 4);
      const bool first = TILES == 1 || piece < BLOCKS;
      const float4 by = make_float4(first ? weight.x : second_weight.x, first ? weight.y : second_weight.y, first ? weight.z : second_weight.z,
                                    first ? weight.w : second_weight.w);
      if (target.is_row(row(piece))) {
        const long long place = target.place(row(piece), its_tile);
        *(uint2*)(added.total + place) = total;
        *(uint2*)(target.y + place) = make_uint2(pack2(a * (by.x + added.offset), b * (by.y + added.offset)),
                                                 pack2(c * (by.z + added.offset), d * (by.w + added.offset)));
      }
    }
    if (threadIdx.x % 4 == 0) squares(piece / BLOCKS, warp)[piece % BLOCKS * 8 + threadIdx.x % 32 / 4] = square;
  }
  // Four outputs of a row as `rounded` leaves them, where mma has them: of rows 2 c (+ 1) outputs g, and g + 8.
  static __device__ __forceinline__ uint2 from_four(uint2 four) {
    const bool odd = threadIdx.x % 2;
    const u32 other = __shfl_xor_sync(~0u, odd ? four.x : four.y, 1);
    return make_uint2(transpose(odd ? other : four.x), transpose(odd ? four.y : other));
  }
  __device__ __forceinline__ float* squares(int its_tile, int its_warp) const { return factors + (1 + its_tile * WARPS + its_warp) * BLOCK_ROWS; }
  // When all warps are through with pieces from ... to - 1 of a tile of the block.
  __device__ __forceinline__ void end(int from, int to) const {
    if (!ADDED) return;
    await_multipliers();
    for (int i = threadIdx.x; i < (to - from) * 8; i += 32 * WARPS) {
      const int piece = from + i / 8, at = piece % BLOCKS * 8 + i % 8;
      float sum = 0;
#pragma unroll
      for (int w = 0; w < WARPS; w++) sum += squares(piece / BLOCKS, w)[at];
      if (first_row + at < target.rows) *added.squares.at(first_row + at, (first_tile - warp) / WARPS + piece / BLOCKS) = sum;
    }
    await_multipliers();
  }
  static __device__ __forceinline__ float silu(float x) { return __fdividef(x, 1 + __expf(-x)); }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) hopper_rows(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map, const __grid_constant__ TensorMap scale_map,
    const __grid_constant__ TensorMap beside_map, const u32* __restrict__ scale, const u32* __restrict__ zero, u16* __restrict__ y,
    float4* sums, int rows, int outputs, int inputs, int waves, int row_band, Normed normed, Added added, Beside beside) {
  extern __shared__ __align__(1024) uint4 shared[];
  float* const factors = (float*)shared + STAGES * STAGE_BYTES / 4;  // of a norm's rows
  const u32 ring = shared_address(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int chunks = inputs / CHUNK, tiles = outputs / 16;
  const int workers = gridDim.x - (BESIDE ? beside.parts : 0);
  auto share = [&] {
    return Work(blockIdx.x, workers, (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, (tiles + BLOCK_TILES - 1) / BLOCK_TILES, chunks, waves, row_band);
  };

  let_next_kernel_start();
  if (BESIDE && blockIdx.x >= workers) {
    float4* const its_sums = sums + (long long)workers * 2 * BLOCK_TILES * BLOCKS * 32;  // behind those of workers
    beside_block(ring, x_map, beside_map, beside, normed, factors, its_sums, blockIdx.x - workers, rows, inputs);
    return;
  }
  if (threadIdx.x < STAGES) {
    const u32 stage = ring + threadIdx.x * STAGE_BYTES;
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(stage + FULL_AT) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(stage + EMPTY_AT), "n"(WARPS) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  u32 stage = ring, phase = 0;  // the next one
  int slot = 0;
  auto next_stage = [&] {
    stage += STAGE_BYTES;
    if (++slot == STAGES) slot = 0, stage -= STAGES * STAGE_BYTES, phase ^= 1;
  };

  if (warp >= WARPS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COPY_REGISTERS));
    if (warp == WARPS && lane == 0) {
      prefetch(&weight_map), prefetch(&x_map);
      if (GROUP) prefetch(&scale_map);
      const Work work = share();
      u64 policy;  // weights leave the L2 cache before x and sums do
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
      int unit, step, row, first_tile;  // of a stage: row of x, tile of the first warp
      auto go_to = [&](int to) {
        int tile, row_block, output_block;
        unit = to;
        work.place(unit, tile, step);
        work.blocks(tile, row_block, output_block);
        row = row_block * BLOCK_ROWS, first_tile = output_block * BLOCK_TILES / HALVES;
      };
      auto advance = [&] {
        next_stage();
        unit++, step++;
        if (step == work.steps || unit == work.whole) go_to(unit);
      };
      auto copy_weights = [&] {
        expect_bytes(stage + FULL_AT, FULL_AT);  // all that lies before it
#pragma unroll
        for (int t = 0; t < TILES; t++) {
          const int tile = first_tile + t * SECOND_TILE, warps = t * WARPS;
          copy_box(stage + WEIGHTS_AT + warps * WEIGHT_BYTES, &weight_map, 0, 2 * step, tile, stage + FULL_AT, policy);
          if (GROUP) copy_box(stage + SCALES_AT + warps * SCALE_BYTES, &scale_map, 0, step * GROUPS, tile, stage + FULL_AT, policy);
        }
      };
      auto copy_x = [&] {
#pragma unroll
        for (int half = 0; half < 2; half++) copy_box(stage + half * HALF_X_BYTES, &x_map, step * CHUNK + half * 64, row, stage + FULL_AT);
      };
      const int ahead = min(STAGES, work.count);
      go_to(0);
      const int first_step = step, first_row = row;
#pragma unroll 1
      for (int i = 0; i < ahead; i++, advance()) copy_weights();
      await_previous_kernel();  // the weights need not wait for what makes x
      unit = 0, step = first_step, row = first_row, stage = ring, slot = 0;
#pragma unroll 1
      for (int i = 0; i < ahead; i++, advance()) copy_x();
      phase = 0;
#pragma unroll 1
      for (int i = STAGES; i < work.count; i++, advance()) {
        await_phase(stage + EMPTY_AT, phase);
        copy_weights();
        copy_x();
      }
    } else if (NORMED && warp > WARPS) {
      await_previous_kernel();
      factors_of_rows(factors, normed, rows, inputs, warp - WARPS - 1, 3);
      barrier_arrive(FACTORS_MADE);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
    const int g = lane / 4;
    const Work work = share();
    const Target target{y, scale, rows, outputs / HALVES};
    u32 own_weights = WEIGHTS_AT + warp * WEIGHT_BYTES + lane * 16, own_scales = SCALES_AT + warp * SCALE_BYTES + g * 4;
    asm volatile("" : "+r"(own_weights), "+r"(own_scales));  // not to be computed again for each stage
    float total[TILES][SUMS];
    u32 pairs[TILES][PART_GROUPS];
    uint4 w[TILES][PART_VECTORS];
    GroupScale group;
    if (!GROUP) group.set(0, 0);
    int step, zero_group[TILES];

    auto load = [&](int part) {
      if (part == 0) await_phase(stage + FULL_AT, phase);
#pragma unroll
      for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int v = 0; v < PART_VECTORS; v++)
          w[t][v] = load_vector(stage + own_weights + t * WARPS * WEIGHT_BYTES + (part * PART_VECTORS + v) * 512);
        if (GROUP && part * PART_STEPS * 16 % GROUP_INPUTS == 0)
#pragma unroll
          for (int i = 0; i < PART_GROUPS; i++)
            pairs[t][i] = load_word(stage + own_scales + t * WARPS * SCALE_BYTES + (part * PART_GROUPS + i) * 32);
      }
    };
    auto add_part = [&](int part, int chunk) {
      u32 a[TILES][PART_STEPS][4];
#pragma unroll
      for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int s = 0; s < PART_STEPS; s++) {
          const int at = (part * PART_STEPS + s) * 16;  // in the chunk
          if (GROUP && (at % GROUP_INPUTS == 0 || (TILES > 1 && s == 0))) {
            const long long its_group = zero_group[t] + chunk * GROUPS + at / GROUP_INPUTS;
            group.set(pairs[t][s * 16 / GROUP_INPUTS], ZEROS ? __ldg((const unsigned char*)zero + its_group * 8 + g) : 0);
          }
          group.decode_step(a[t][s], w[t], s);
        }
      // K-major, 128-byte swizzle, 1024 bytes from 8 rows to the next 8; a step is 32 bytes further within the rows.
      const u32 x_at = stage >> 4 | 1 << 16;
      begin_products();
#pragma unroll
      for (int s = 0; s < PART_STEPS; s++) {
        const int at = part * PART_STEPS + s;
        const u32 step_at = x_at + at / 4 * (HALF_X_BYTES / 16) + at % 4 * 2;
        if (GATED) {
          const u32(&gate)[4] = a[0][s], (&gated)[4] = a[TILES - 1][s];
          multiply(total[0], {gate[0], gated[0], gate[2], gated[2]}, step_at);
          multiply(total[TILES - 1], {gate[1], gated[1], gate[3], gated[3]}, step_at);
        } else {
#pragma unroll
          for (int t = 0; t < TILES; t++) multiply(total[t], a[t][s], step_at);
        }
      }
      commit_products();
    };
    auto add_chunk = [&](int chunk, bool is_last) {  // of the tile; what comes next is loaded while products run
      const u32 used = stage;
#pragma unroll
      for (int part = 0; part < PARTS_OF_CHUNK; part++) {
        add_part(part, chunk);
        if (part == PARTS_OF_CHUNK - 1) next_stage();
        if (part < PARTS_OF_CHUNK - 1 || !is_last) load((part + 1) % PARTS_OF_CHUNK);
        await_products();
      }
      __syncwarp();
      if (lane == 0) arrive(used + EMPTY_AT);
    };
    const Shared<TILES * BLOCKS, FREE_REGISTERS >= 32 ? 8 : FREE_REGISTERS >= 16 ? 4 : 2, REGISTERS < 112 ? 6 : 8> shared_sums{
        work, sums + warp * TILES * BLOCKS * 32 + lane, WARPS * TILES * BLOCKS * 32};
    Finish finish{work, target, added, factors, warp};
    bool has_factors = !NORMED;
    auto await_factors = [&] {
      if (!has_factors) barrier_wait(FACTORS_MADE);
      has_factors = true;
    };

    await_previous_kernel();
    for (int unit = 0; unit < work.count;) {
      int tile, row_block, output_block;
      work.place(unit, tile, step);
      work.blocks(tile, row_block, output_block);
      const int length = min(work.steps - step, work.count - unit);
#pragma unroll
      for (int t = 0; t < TILES; t++) {
        zero_group[t] = min(output_block * BLOCK_TILES / HALVES + warp + t * SECOND_TILE, tiles - 1) * chunks * GROUPS;
#pragma unroll
        for (int i = 0; i < SUMS; i++) total[t][i] = 0;
      }
      const int last = __shfl_sync(~0u, length - 1, 0);  // the same for all lanes, which the compiler is to know
      load(0);
      for (int i = 0; i <= last; i++) add_chunk(step + i, i == last);
#pragma unroll
      for (int i = 0; i < TILES * SUMS; i++) {
        float& sum = total[i / SUMS][i % SUMS];
        asm volatile("" : "+f"(sum)::"memory");  // sums are not read before
        if (SMALL) sum *= SMALL_INVERSE;
      }
      unit += length;

      uint2 asked[TILES * BLOCKS];
      finish.begin(tile);
      if (!SPLIT || length == work.steps)
#pragma unroll
        for (int piece = 0; piece < TILES * BLOCKS; piece++) asked[piece] = finish.ask(piece);
      if (!shared_sums.collect(total[0], tile, step, length)) continue;
      await_factors();
      auto sums_of = [&](int piece) {
        const float* of = total[0] + 4 * piece;
        return make_float4(of[0], of[1], of[2], of[3]);
      };
#pragma unroll
      for (int piece = 0; piece < TILES * BLOCKS / HALVES; piece++)
        if (GATED)
          finish.gate(sums_of(piece), sums_of(piece + BLOCKS), piece);
        else
          finish.store(sums_of(piece), piece, asked[piece]);
      finish.end(0, TILES * BLOCKS);
    }
    await_factors();
    shared_sums.finish_with(finish);
  }
}
