// 17 rows and more on Hopper (sm_90a): y = x W^T by wgmma for BLOCK_ROWS rows of x (its N) and 64 outputs a warpgroup (its M).
//
// A worker (work.cuh) is a block: WARPGROUPS that multiply, and a warp that copies. It fills a ring of STAGES, each a chunk of the inputs,
// which goes on from one tile to the next: x by a tensor map with the 128-byte swizzle, weights and scales of all warps as they lie. The
// weights are the A operand in registers: the warp that owns 16 outputs decodes and scales a part of a chunk (all of it, or half) in the
// activations' type while other warps' products run. x is B.
//
// Macros: BLOCK_ROWS (a multiple of 8), WARPGROUPS, PARTS_OF_CHUNK (1 or 2), STAGES, RESIDENT (blocks of a processor), REGISTERS and
// COPY_REGISTERS (of a thread that multiplies, and copies), SPLIT (work.cuh); `multiply` is written by the host, for an accumulator of
// BLOCK_ROWS / 2 numbers a thread.
#define WARPS (4 * WARPGROUPS)
#define BLOCKS (BLOCK_ROWS / 8)  // of 8 rows, in a thread's sums
#define PART_STEPS (STEPS / PARTS_OF_CHUNK)
#define PART_VECTORS (VECTORS / PARTS_OF_CHUNK)
#define PART_GROUPS (GROUP && GROUP < 16 * PART_STEPS ? 16 * PART_STEPS / GROUP : 1)
#define GROUP_INPUTS (GROUP ? GROUP : CHUNK)
#define HALF_X_BYTES (BLOCK_ROWS * 128)    // 64 inputs, what a row of the swizzle has
#define WEIGHT_BYTES (16 * CHUNK * BITS / 8)  // of a warp and stage
#define SCALE_BYTES (32 * GROUPS)
#define WEIGHTS_AT (2 * HALF_X_BYTES)  // in a stage
#define SCALES_AT (WEIGHTS_AT + WARPS * WEIGHT_BYTES)
#define FULL_AT (SCALES_AT + WARPS * SCALE_BYTES)  // its barriers
#define EMPTY_AT (FULL_AT + 8)
#define STAGE_BYTES ((EMPTY_AT + 8 + 1023) / 1024 * 1024)
#define THREADS (32 * WARPS + 128)  // registers change hands between groups of 4 warps: one of the last copies
#define FREE_REGISTERS (65536 / (RESIDENT * THREADS) - BLOCK_ROWS / 2 - 28)  // while sums come together

typedef unsigned long long u64;
struct alignas(64) TensorMap { u64 words[16]; };

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void await_products() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

__device__ __forceinline__ void await_phase(u32 barrier, u32 phase) {
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra DONE; bra AGAIN; DONE: }"
               ::"r"(barrier), "r"(phase) : "memory");
}
__device__ __forceinline__ uint4 load_vector(u32 at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}
__device__ __forceinline__ u32 load_word(u32 at) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
__device__ __forceinline__ void expect_bytes(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
__device__ __forceinline__ void prefetch(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
__device__ __forceinline__ void copy_box(u32 to, const TensorMap* map, int x, int y, u32 barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(barrier) : "memory");
}
__device__ __forceinline__ void copy_box(u32 to, const TensorMap* map, int x, int y, int z, u32 barrier, u64 policy) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;"
               ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "l"(policy) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) hopper_rows(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map, const __grid_constant__ TensorMap scale_map,
    const u32* __restrict__ scale, const u32* __restrict__ zero, u16* __restrict__ y, float4* sums, int rows, int outputs, int inputs, int waves, int row_band) {
  extern __shared__ __align__(1024) uint4 shared[];
  const u32 ring = shared_address(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int chunks = inputs / CHUNK, tiles = outputs / 16;
  auto share = [&] {
    return Work(blockIdx.x, gridDim.x, (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, (tiles + WARPS - 1) / WARPS, chunks, waves, row_band);
  };

  let_next_kernel_start();
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
        row = row_block * BLOCK_ROWS, first_tile = output_block * WARPS;
      };
      auto advance = [&] {
        next_stage();
        unit++, step++;
        if (step == work.steps || unit == work.whole) go_to(unit);
      };
      auto copy_weights = [&] {
        expect_bytes(stage + FULL_AT, FULL_AT);  // all that lies before it
        copy_box(stage + WEIGHTS_AT, &weight_map, 0, 2 * step, first_tile, stage + FULL_AT, policy);
        if (GROUP) copy_box(stage + SCALES_AT, &scale_map, 0, step * GROUPS, first_tile, stage + FULL_AT, policy);
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
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
    const int g = lane / 4;
    const Work work = share();
    const Target target{y, scale, rows, outputs};
    u32 own_weights = WEIGHTS_AT + warp * WEIGHT_BYTES + lane * 16, own_scales = SCALES_AT + warp * SCALE_BYTES + g * 4;
    asm volatile("" : "+r"(own_weights), "+r"(own_scales));  // not to be computed again for each stage
    float total[BLOCK_ROWS / 2];
    u32 pairs[PART_GROUPS];
    uint4 w[PART_VECTORS];
    GroupScale group;
    if (!GROUP) group.set(0, 0);
    int step, zero_group;

    auto load = [&](int part) {
      if (part == 0) await_phase(stage + FULL_AT, phase);
#pragma unroll
      for (int v = 0; v < PART_VECTORS; v++) w[v] = load_vector(stage + own_weights + (part * PART_VECTORS + v) * 512);
      if (GROUP && part * PART_STEPS * 16 % GROUP_INPUTS == 0)
#pragma unroll
        for (int i = 0; i < PART_GROUPS; i++) pairs[i] = load_word(stage + own_scales + (part * PART_GROUPS + i) * 32);
    };
    auto add_part = [&](int part, int chunk) {
      u32 a[PART_STEPS][4];
#pragma unroll
      for (int s = 0; s < PART_STEPS; s++) {
        const int at = (part * PART_STEPS + s) * 16;  // in the chunk
        if (GROUP && at % GROUP_INPUTS == 0)
          group.set(pairs[s * 16 / GROUP_INPUTS], ZEROS ? __ldg((const unsigned char*)zero + (long long)(zero_group + chunk * GROUPS + at / GROUP_INPUTS) * 8 + g) : 0);
        group.decode_step(a[s], w, s);
      }
      // K-major, 128-byte swizzle, 1024 bytes from 8 rows to the next 8; a step is 32 bytes further within the rows.
      const u32 x_at = stage >> 4 | 1 << 16;
      begin_products();
#pragma unroll
      for (int s = 0; s < PART_STEPS; s++) {
        const int at = part * PART_STEPS + s;
        multiply(total, a[s], x_at + at / 4 * (HALF_X_BYTES / 16) + at % 4 * 2);
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
    const Shared<BLOCKS, FREE_REGISTERS >= 32 ? 8 : FREE_REGISTERS >= 16 ? 4 : 2, REGISTERS < 112 ? 8 : REGISTERS < 160 ? 12 : 16> shared_sums{work, sums + warp * BLOCKS * 32 + lane, WARPS * BLOCKS * 32};
    auto store = [&](float4 sum, int tile, int block) {
      int row_block, output_block;
      work.blocks(tile, row_block, output_block);
      target.store(sum, row_block * BLOCK_ROWS + block * 8, output_block * WARPS + warp);
    };

    await_previous_kernel();
    for (int unit = 0; unit < work.count;) {
      int tile, row_block, output_block;
      work.place(unit, tile, step);
      work.blocks(tile, row_block, output_block);
      const int length = min(work.steps - step, work.count - unit);
      zero_group = min(output_block * WARPS + warp, tiles - 1) * chunks * GROUPS;
#pragma unroll
      for (int i = 0; i < BLOCK_ROWS / 2; i++) total[i] = 0;
      const int last = __shfl_sync(~0u, length - 1, 0);  // the same for all lanes, which the compiler is to know
      load(0);
      for (int i = 0; i <= last; i++) add_chunk(step + i, i == last);
#pragma unroll
      for (int i = 0; i < BLOCK_ROWS / 2; i++) {
        asm volatile("" : "+f"(total[i])::"memory");  // sums are not read before
        if (SMALL) total[i] *= SMALL_INVERSE;
      }
      unit += length;

      if (!shared_sums.collect(total, tile, step, length)) continue;
#pragma unroll
      for (int b = 0; b < BLOCKS; b++) store(make_float4(total[4 * b], total[4 * b + 1], total[4 * b + 2], total[4 * b + 3]), tile, b);
    }
    shared_sums.finish(store);
  }
}
