// 17 rows and more on Hopper (sm_90a): y = x W^T by wgmma for BLOCK_ROWS rows of x (its N) and 64 outputs a warpgroup (its M).
//
// A worker (work.cuh) is a block: WARPGROUPS that multiply, and a warp that copies. It fills a ring of STAGES of HALVES half chunks of the
// inputs, which goes on from one tile to the next: x by a tensor map with the 128-byte swizzle, weights and scales of all warps as they lie.
// The weights are the A operand in registers: the warp that owns 16 outputs decodes and scales a batch of them in the activations' type
// while the products of the batch before (with BUFFERS 2) and other warps' run. x is B.
//
// Macros: BLOCK_ROWS (a multiple of 8), WARPGROUPS, HALVES (1 or 2), BATCHES (of a stage; 1 or 2), STAGES, BUFFERS, RESIDENT (blocks of a
// processor), REGISTERS and COPY_REGISTERS (of a thread that multiplies, and copies), SPLIT (work.cuh); `multiply` is written by the host, for
// an accumulator of BLOCK_ROWS / 2 numbers a thread.
#define WARPS (4 * WARPGROUPS)
#define BLOCKS (BLOCK_ROWS / 8)  // of 8 rows, in a thread's sums
#define STAGE_INPUTS (64 * HALVES)
#define STAGES_OF_CHUNK (2 / HALVES)
#define STAGE_VECTORS (HALVES * VECTORS / 2)
#define BATCH_STEPS (4 * HALVES / BATCHES)
#define X_BYTES (HALVES * BLOCK_ROWS * 128)
#define WEIGHT_BYTES (HALVES * 128 * BITS)  // of a warp and stage
#define STAGE_GROUPS (GROUP ? (STAGE_INPUTS > GROUP ? STAGE_INPUTS / GROUP : 1) : 0)
#define SCALE_BYTES (32 * STAGE_GROUPS)
#define SCALES_AT (X_BYTES + WARPS * WEIGHT_BYTES)  // in a stage
#define FULL_AT (SCALES_AT + WARPS * SCALE_BYTES)   // its barriers
#define EMPTY_AT (FULL_AT + 8)
#define STAGE_BYTES ((EMPTY_AT + 8 + 1023) / 1024 * 1024)
#define THREADS (32 * WARPS + 128)  // registers change hands between groups of 4 warps: one of the last copies
#define GROUP_OF_STEP(step) (GROUP ? (step) * 16 / (GROUP ? GROUP : 1) : 0)

typedef unsigned long long u64;
struct alignas(64) TensorMap { u64 words[16]; };

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void await_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

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
      const Work work = share();
      u64 policy;  // weights leave the L2 cache before x and sums do
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
      int unit, step, part, row, first_tile;  // of a stage: part of its chunk, row of x, tile of the first warp
      auto go_to = [&](int to) {
        int tile, row_block, output_block;
        unit = to, part = 0;
        work.place(unit, tile, step);
        work.blocks(tile, row_block, output_block);
        row = row_block * BLOCK_ROWS, first_tile = output_block * WARPS;
      };
      auto advance = [&] {
        next_stage();
        if (++part < STAGES_OF_CHUNK) return;
        part = 0, unit++, step++;
        if (step == work.steps || unit == work.whole) go_to(unit);
      };
      auto copy_weights = [&] {
        const int half = step * 2 + part;
        expect_bytes(stage + FULL_AT, X_BYTES + WARPS * (WEIGHT_BYTES + SCALE_BYTES));
        copy_box(stage + X_BYTES, &weight_map, 0, half, first_tile, stage + FULL_AT, policy);
        if (GROUP) copy_box(stage + SCALES_AT, &scale_map, 0, half * 64 / (GROUP ? GROUP : 1), first_tile, stage + FULL_AT, policy);
      };
      auto copy_x = [&] {
#pragma unroll
        for (int h = 0; h < HALVES; h++)
          copy_box(stage + h * (BLOCK_ROWS * 128), &x_map, (step * 2 + part + h) * 64, row, stage + FULL_AT);
      };
      const int count = work.count * STAGES_OF_CHUNK, ahead = min(STAGES, count);
      go_to(0);
#pragma unroll 1
      for (int i = 0; i < ahead; i++, advance()) copy_weights();
      await_previous_kernel();  // the weights need not wait for what makes x
      go_to(0), stage = ring, slot = 0;
#pragma unroll 1
      for (int i = 0; i < ahead; i++, advance()) copy_x();
      phase = 0;
#pragma unroll 1
      for (int i = STAGES; i < count; i++, advance()) {
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
    u32 own_weights = X_BYTES + warp * WEIGHT_BYTES + lane * 16, own_scales = SCALES_AT + warp * SCALE_BYTES + g * 4;
    asm volatile("" : "+r"(own_weights), "+r"(own_scales));  // not to be computed again for each stage
    float total[BLOCK_ROWS / 2];
    u32 decoded[BUFFERS][BATCH_STEPS][4], pairs[STAGE_GROUPS + 1], behind = 0;
    uint4 w[STAGE_VECTORS];
    GroupScale group;
    if (!GROUP) group.set(0, 0);
    int step, zero_group;

    auto load = [&] {
      await_phase(stage + FULL_AT, phase);
#pragma unroll
      for (int v = 0; v < STAGE_VECTORS; v++) w[v] = load_vector(stage + own_weights + v * 512);
#pragma unroll
      for (int i = 0; i < STAGE_GROUPS; i++) pairs[i] = load_word(stage + own_scales + i * 32);
    };
    auto add_batch = [&](int batch, int first_group, u32 (&a)[BATCH_STEPS][4]) {  // first_group: of the stage
#pragma unroll
      for (int s = 0; s < BATCH_STEPS; s++) {
        const int at = batch * BATCH_STEPS + s, of_stage = GROUP_OF_STEP(at);
        if (GROUP && (at == 0 || of_stage != GROUP_OF_STEP(at - 1)))
          group.set(pairs[of_stage], ZEROS ? __ldg((const unsigned char*)zero + (long long)(first_group + of_stage) * 8 + g) : 0);
        group.decode_step(a[s], w, at);
      }
      // K-major, 128-byte swizzle, 1024 bytes from 8 rows to the next 8; a step is 32 bytes further within the rows.
      const u32 x_at = stage >> 4 | 1 << 16;
      begin_products();
#pragma unroll
      for (int s = 0; s < BATCH_STEPS; s++) {
        const int at = batch * BATCH_STEPS + s;
        multiply(total, a[s], x_at + at / 4 * (BLOCK_ROWS * 8) + at % 4 * 2);
      }
      commit_products();
    };
    auto give_back = [&](u32 of) {
      __syncwarp();
      if (lane == 0) arrive(of + EMPTY_AT);
    };
    auto add_stage = [&](int i, int last, int buffer) {  // i: of the tile's stages that this worker has
      const u32 before = behind;  // a stage is given back when its products are done
      const int first_group = ZEROS ? zero_group + (step * STAGES_OF_CHUNK + i) * STAGE_INPUTS / (GROUP ? GROUP : 1) : 0;
      behind = stage;
#pragma unroll
      for (int b = 0; b < BATCHES; b++) {
        add_batch(b, first_group, decoded[(buffer + b) % BUFFERS]);
        if (b == BATCHES - 1) {
          next_stage();
          if (i < last) load();
        }
        await_products<BUFFERS - 1>();
        if (BUFFERS == 2 && b == 0 && i > 0) give_back(before);
      }
      if (BUFFERS == 1) give_back(behind);
    };
    const Shared<BLOCKS, REGISTERS - BLOCK_ROWS / 2 < 96 ? 2 : 4, REGISTERS < 112 ? 8 : REGISTERS < 160 ? 12 : 16> shared_sums{work, sums + warp * BLOCKS * 32 + lane, WARPS * BLOCKS * 32};
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
      const int last = __shfl_sync(~0u, length * STAGES_OF_CHUNK - 1, 0);
      load();
      if (BUFFERS == 1 || BATCHES == 2) {
        for (int i = 0; i <= last; i++) add_stage(i, last, 0);
      } else {
        for (int i = 0; i <= last; i += 2) {
          add_stage(i, last, 0);
          if (STAGES_OF_CHUNK == 2 || i < last) add_stage(i + 1, last, 1);
        }
      }
      await_products<0>();
#pragma unroll
      for (int i = 0; i < BLOCK_ROWS / 2; i++) {
        asm volatile("" : "+f"(total[i])::"memory");  // sums are not read before
        if (SMALL) total[i] *= SMALL_INVERSE;
      }
      if (BUFFERS == 2) give_back(behind);
      unit += length;

      if (!shared_sums.collect(total, tile, step, length)) continue;
#pragma unroll
      for (int b = 0; b < BLOCKS; b++) store(make_float4(total[4 * b], total[4 * b + 1], total[4 * b + 2], total[4 * b + 3]), tile, b);
    }
    shared_sums.finish(store);
  }
}
