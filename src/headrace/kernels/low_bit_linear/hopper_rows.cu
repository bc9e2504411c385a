// 17 rows and more on Hopper (sm_90a): y = x W^T by wgmma for BLOCK_ROWS rows of x (its N) and 64 outputs a warpgroup (its M).
//
// A worker (work.cuh) is a block: WARPGROUPS that multiply, and a warp that copies. It fills a ring of STAGES of HALVES half chunks of the
// inputs, which goes on from one tile to the next: x by a tensor map with the 128-byte swizzle, weights and scales of all warps as they lie.
// The weights are the A operand in registers: the warp that owns 16 outputs decodes and scales them in the activations' type while the
// product of the half chunk before runs (with BUFFERS 2). x is B.
//
// Macros: BLOCK_ROWS (a multiple of 8), WARPGROUPS, HALVES (1 or 2), STAGES, BUFFERS, RESIDENT (blocks of a processor), REGISTERS and
// COPY_REGISTERS (of a thread that multiplies, and copies), SPLIT (work.cuh); `multiply` is written by the host, for an accumulator of
// BLOCK_ROWS / 2 numbers a thread.
#define WARPS (4 * WARPGROUPS)
#define BLOCKS (BLOCK_ROWS / 8)  // of 8 rows, in a thread's sums
#define STAGE_INPUTS (64 * HALVES)
#define STAGES_OF_CHUNK (2 / HALVES)
#define HALF_VECTORS (VECTORS / 2)
#define X_BYTES (HALVES * BLOCK_ROWS * 128)
#define WEIGHT_BYTES (HALVES * 128 * BITS)  // of a warp and stage
#define STAGE_GROUPS (GROUP ? (STAGE_INPUTS > GROUP ? STAGE_INPUTS / GROUP : 1) : 0)
#define SCALE_BYTES (32 * STAGE_GROUPS)
#define BARRIERS_AT (STAGES * (X_BYTES + WARPS * (WEIGHT_BYTES + SCALE_BYTES)))
#define THREADS (32 * WARPS + 128)  // registers change hands between groups of 4 warps: one of the last copies
#define STEPS_OF_GROUP (GROUP == 32 ? 2 : 4)  // within a half

typedef unsigned long long u64;
struct alignas(64) TensorMap { u64 words[16]; };

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void await_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

__device__ __forceinline__ void await_phase(u32 barrier, u32 phase) {
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra DONE; bra AGAIN; DONE: }"
               ::"r"(barrier), "r"(phase) : "memory");
}
__device__ __forceinline__ bool is_past(u32 barrier, u32 phase) {  // may say no too often
  u32 past;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(past) : "r"(barrier), "r"(phase) : "memory");
  return past;
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
  const u32 shared_at = shared_address(shared), weights_at = shared_at + STAGES * X_BYTES;
  const u32 scales_at = weights_at + STAGES * WARPS * WEIGHT_BYTES, full = shared_at + BARRIERS_AT, empty = full + 8 * STAGES;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int chunks = inputs / CHUNK, tiles = outputs / 16;
  auto share = [&] {
    return Work(blockIdx.x, gridDim.x, (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, (tiles + WARPS - 1) / WARPS, chunks, waves, row_band);
  };

  let_next_kernel_start();
  if (threadIdx.x < STAGES) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full + 8 * threadIdx.x) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(empty + 8 * threadIdx.x), "n"(WARPS) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

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
        if (++part < STAGES_OF_CHUNK) return;
        part = 0, unit++, step++;
        if (step == work.steps || unit == work.whole) go_to(unit);
      };
      auto copy_weights = [&](int slot) {
        const u32 barrier = full + 8 * slot;
        const int half = step * 2 + part;
        expect_bytes(barrier, X_BYTES + WARPS * (WEIGHT_BYTES + SCALE_BYTES));
        copy_box(weights_at + slot * (WARPS * WEIGHT_BYTES), &weight_map, 0, half, first_tile, barrier, policy);
        if (GROUP) copy_box(scales_at + slot * (WARPS * SCALE_BYTES), &scale_map, 0, half * 64 / (GROUP ? GROUP : 1), first_tile, barrier, policy);
      };
      auto copy_x = [&](int slot) {
#pragma unroll
        for (int h = 0; h < HALVES; h++)
          copy_box(shared_at + slot * X_BYTES + h * (BLOCK_ROWS * 128), &x_map, (step * 2 + part + h) * 64, row, full + 8 * slot);
      };
      const int count = work.count * STAGES_OF_CHUNK, ahead = min(STAGES, count);
      go_to(0);
#pragma unroll 1
      for (int i = 0; i < ahead; i++, advance()) copy_weights(i);
      await_previous_kernel();  // the weights need not wait for what makes x
      go_to(0);
#pragma unroll 1
      for (int i = 0; i < ahead; i++, advance()) copy_x(i);
      int slot = 0;
      u32 phase = 0;
#pragma unroll 1
      for (int i = STAGES; i < count; i++, advance()) {
        await_phase(empty + 8 * slot, phase);
        copy_weights(slot);
        copy_x(slot);
        if (++slot == STAGES) slot = 0, phase ^= 1;
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
    const int g = lane / 4;
    const Work work = share();
    const Target target{y, scale, rows, outputs};
    const u32 own_weights = weights_at + warp * WEIGHT_BYTES + lane * 16, own_scales = scales_at + warp * SCALE_BYTES + g * 4;
    float total[BLOCK_ROWS / 2];
    u32 decoded[BUFFERS][4][4];
    int slot = 0, step, zero_group;
    u32 phase = 0, behind;
    bool is_there = false;

    auto add_half = [&](int half, int place, int chunk_groups, u32 (&a)[4][4]) {  // place: of the half in its stage
      uint4 w[HALF_VECTORS];
#pragma unroll
      for (int v = 0; v < HALF_VECTORS; v++) w[v] = load_vector(own_weights + slot * (WARPS * WEIGHT_BYTES) + (place * HALF_VECTORS + v) * 512);
      u32 z[2], pairs[2];
      symmetric_points(z);
      if (BUFFERS == 1) await_products<0>();
#pragma unroll
      for (int s = 0; s < 4; s++) {
        if (GROUP && s % STEPS_OF_GROUP == 0) {
          const u32 pair = load_word(own_scales + slot * (WARPS * SCALE_BYTES) + (place * 64 + s * 16) / (GROUP ? GROUP : 1) * 32);
          pairs[0] = __byte_perm(pair, pair, 0x1010), pairs[1] = __byte_perm(pair, pair, 0x3232);
          if (SCALE_BF16 != BF16) {
            const float low = low_number(pair, SCALE_BF16), high = high_number(pair, SCALE_BF16);
            pairs[0] = pack2(low, low), pairs[1] = pack2(high, high);
          }
          if (ZEROS) zero_points(z, __ldg((const unsigned char*)zero + (long long)(zero_group + chunk_groups + (half * 64 + s * 16) / (GROUP ? GROUP : 1)) * 8 + g));
        }
        decode(a[s], w, s, z);
        if (GROUP)
#pragma unroll
          for (int i = 0; i < 4; i++) a[s][i] = multiply2(a[s][i], pairs[i % 2]);
      }
      // K-major, 128-byte swizzle, 1024 bytes from 8 rows to the next 8; a step is 32 bytes further within the rows.
      const u32 x_at = (shared_at + slot * X_BYTES + place * (BLOCK_ROWS * 128)) >> 4 | 1 << 16;
      begin_products();
#pragma unroll
      for (int s = 0; s < 4; s++) multiply(total, a[s], x_at + 2 * s);
      commit_products();
    };
    auto give_back = [&](u32 barrier) {
      __syncwarp();
      if (lane == 0) arrive(barrier);
    };
    auto next_stage = [&] {
      behind = empty + 8 * slot;
      if (++slot == STAGES) slot = 0, phase ^= 1;
      is_there = is_past(full + 8 * slot, phase);  // looked at while products are awaited
    };
    auto await_stage = [&] {
      if (!is_there) await_phase(full + 8 * slot, phase);
    };
    auto add_chunk = [&](bool first, int chunk) {
      u32 before = behind;  // the barrier of the last stage, which is given back when its products are done
      await_stage();
      add_half(0, 0, chunk * GROUPS, decoded[0]);
      if (HALVES == 1) next_stage();
      if (BUFFERS == 2) await_products<1>();
      if (!first) give_back(before);
      if (HALVES == 1) {
        await_stage();
        before = behind;
      }
      add_half(1, HALVES == 2, chunk * GROUPS, decoded[BUFFERS - 1]);
      next_stage();
      if (BUFFERS == 2) await_products<1>();
      if (HALVES == 1) give_back(before);
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
      for (int i = 0; i < length; i++) add_chunk(i == 0, step + i);
      await_products<0>();
#pragma unroll
      for (int i = 0; i < BLOCK_ROWS / 2; i++) asm volatile("" : "+f"(total[i])::"memory");  // sums are not read before
      give_back(behind);
      unit += length;

      if (!shared_sums.collect(total, tile, step, length)) continue;
#pragma unroll
      for (int b = 0; b < BLOCKS; b++) store(make_float4(total[4 * b], total[4 * b + 1], total[4 * b + 2], total[4 * b + 3]), tile, b);
    }
    shared_sums.finish(store);
  }
}
