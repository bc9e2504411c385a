// Many rows on Hopper (sm_90a): wgmma on 8-bit codes for BLOCK_ROWS rows of x (its N) and 64 outputs a warpgroup (its M).
//
// Two warpgroups multiply, and the warps of a third, which gives its registers to them, copy. The weights are the A operand in
// registers, decoded exactly to the codes' type by the warp that owns their tile; x is B in shared memory, which the copies fill as
// it lies in memory. A group's sums times its scale are added in float32, those of one half of the rows while the other's products
// run. Blocks walk over tiles of the result; CLUSTER blocks with the same rows and neighbouring outputs share what they read of x.
//
// Macros: those of the preludes, BLOCK_ROWS (64, 128), STAGES, CLUSTER (1, 2). `multiply` is written by the host, for half of the
// rows.
#define BLOCK_OUTPUTS 128
#define WARPS 8
#define THREADS (32 * WARPS + 128)
#define X_BYTES (BLOCK_ROWS * CHUNK)
#define W_BYTES (WARPS * VECTORS * 512)
#define PIECE_ROWS (BLOCK_ROWS / CLUSTER < 64 ? BLOCK_ROWS / CLUSTER : 64)
#define PIECES (BLOCK_ROWS / CLUSTER / PIECE_ROWS)  // of x, that a block copies for all of its cluster
#define COPIERS 4                                   // warps
#define PITCH (BLOCK_OUTPUTS * 2 + 16)              // bytes from one row of results to the next
#define NUMBERS (BLOCK_ROWS / 4)                    // of an accumulator, for half of the rows
#define PARTS_OF_CHUNK (GROUP ? GROUPS : 1)
#define PART_STEPS (4 / PARTS_OF_CHUNK)
#define TOGETHER 8                                  // blocks of rows that are multiplied before the next outputs

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void await_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

__device__ __forceinline__ void make_barrier(const void* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void await_barrier(const void* barrier, int phase) {
  asm volatile(
      "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra again;\ndone:\n}"
      ::"r"(shared_address(barrier)), "r"(phase) : "memory");
}
__device__ __forceinline__ void expect_bytes(const void* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive_at(const void* barrier, int block) {  // of the cluster
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}"
      ::"r"(shared_address(barrier)), "r"(block) : "memory");
}
__device__ __forceinline__ void copy_bulk(void* to, const void* from, int bytes, const void* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void copy_bulk_to_all(void* to, const void* from, int bytes, const void* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
               ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "h"((u16)((1 << CLUSTER) - 1)) : "memory");
}
__device__ __forceinline__ void await_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void await_warpgroup(int warpgroup) { asm volatile("bar.sync %0, 128;" ::"r"(warpgroup + 1) : "memory"); }

struct Tile { int row_block, output_block; };
// The index-th tile of a cluster: TOGETHER blocks of rows for each of the outputs, so that x stays in the L2 cache meanwhile.
__device__ __forceinline__ Tile tile_at(int index, int row_blocks, int output_blocks) {
  const int band = TOGETHER * output_blocks, first = index / band * TOGETHER, rest = index % band;
  const int height = min(TOGETHER, row_blocks - first);
  return {first + rest % height, rest / height};
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1) hopper_rows(
    const uint4* __restrict__ packed, const u32* __restrict__ scale, const u32* __restrict__ zero, const uint4* __restrict__ x,
    const float* __restrict__ x_scale, u16* __restrict__ y, int rows, int outputs, int inputs) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ __align__(8) unsigned long long full[STAGES], empty[STAGES];
  char* const w_ring = shared + STAGES * X_BYTES;
  char* const results = w_ring + STAGES * W_BYTES;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = blockIdx.x % CLUSTER;
  const int chunks = inputs / CHUNK, tiles = outputs / 16;
  const int row_blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
  const int output_blocks = (outputs + BLOCK_OUTPUTS * CLUSTER - 1) / (BLOCK_OUTPUTS * CLUSTER);  // of a cluster
  const int all = row_blocks * output_blocks, clusters = gridDim.x / CLUSTER;

  let_next_kernel_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) make_barrier(full + i, 1), make_barrier(empty + i, WARPS * CLUSTER);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  await_cluster();
  await_previous_kernel();

  int slot = 0, phase = 0;
  if (warp >= WARPS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");  // 128 * 40 + 256 * 232 is what 384 threads of 168 registers have
    const int copier = warp - WARPS, row = (copier + PIECES * rank) * PIECE_ROWS;
    for (int at = lane ? all : blockIdx.x / CLUSTER; at < all; at += clusters) {  // one lane copies
      const Tile tile = tile_at(at, row_blocks, output_blocks);
      const int first_tile = (tile.output_block * CLUSTER + rank) * WARPS;
      const int first_row = tile.row_block * BLOCK_ROWS + row;
      const uint4* x_from = x + first_row / 64 * chunks * 512 + first_row % 64 * 8;
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; chunk++) {
        await_barrier(empty + slot, phase ^ 1);
        if (copier == 0) expect_bytes(full + slot, X_BYTES + W_BYTES);
#pragma unroll
        for (int i = 0; i < WARPS / COPIERS; i++) {
          const int w = copier + i * COPIERS;
          copy_bulk(w_ring + slot * W_BYTES + w * (VECTORS * 512),
                    packed + (min(first_tile + w, tiles - 1) * chunks + chunk) * (VECTORS * 32), VECTORS * 512, full + slot);
        }
        if (copier < PIECES)
          (CLUSTER == 1 ? copy_bulk : copy_bulk_to_all)(shared + slot * X_BYTES + row * CHUNK, x_from + chunk * 512, PIECE_ROWS * CHUNK, full + slot);
        slot = slot == STAGES - 1 ? (phase ^= 1, 0) : slot + 1;
      }
    }
    __syncwarp();  // before the barrier at the end, which the lanes of a warp must reach together
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int g = lane / 4, c = lane % 4, warpgroup = warp / 4;
    for (int at = blockIdx.x / CLUSTER; at < all; at += clusters) {
      const Tile tile = tile_at(at, row_blocks, output_blocks);
      const int first_output = (tile.output_block * CLUSTER + rank) * BLOCK_OUTPUTS;
      const int w_tile = min(first_output / 16 + warp, tiles - 1);
      const u32* scale_from = scale + (GROUP ? (long long)w_tile * chunks * GROUPS * 8 : w_tile * 8) + g;
      const u32* zero_from = zero + (long long)w_tile * chunks * GROUPS * 2 + g / 4;
      u32 scales[2][PARTS_OF_CHUNK], zeros_ahead[PARTS_OF_CHUNK], a[2][4][4];
      Sum sum[2][NUMBERS];  // of the halves of the rows: one is added to its total while the other's products run
#if !WHOLE
      float total[2][NUMBERS];
#pragma unroll
      for (int i = 0; i < 2 * NUMBERS; i++) total[i / NUMBERS][i % NUMBERS] = 0;
#endif
      auto load_zeros = [&](int chunk) {
#pragma unroll
        for (int j = 0; ZEROS && j < PARTS_OF_CHUNK; j++) zeros_ahead[j] = __ldg(zero_from + (chunk * GROUPS + j) * 2);
      };
      auto fetch = [&](int chunk, int in, int from_slot) {  // the chunk's weights and scales, and the next one's zero points
        u32 points[PARTS_OF_CHUNK];
#pragma unroll
        for (int j = 0; j < PARTS_OF_CHUNK; j++) {
          if (GROUP) scales[in][j] = __ldg(scale_from + (chunk * GROUPS + j) * 8);
          points[j] = ZEROS ? zeros_ahead[j] >> 8 * (g % 4) & 255 : 0x88;
        }
        load_zeros(min(chunk + 1, chunks - 1));
        const uint4* from = (const uint4*)(w_ring + from_slot * W_BYTES) + warp * VECTORS * 32 + lane;
        uint4 w[VECTORS];
#pragma unroll
        for (int v = 0; v < VECTORS; v++) w[v] = from[v * 32];
#pragma unroll
        for (int step = 0; step < 4; step++) {
          u32(&d)[4] = a[in][step];
          decode_codes(d, w, step, points[step / PART_STEPS]);
          asm volatile("" : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]));  // here, not between the next products
        }
      };
      auto start = [&](int half, int part, int in, int from_slot, bool first) {  // the products of one part and half of the rows
        // K-major, 128-byte swizzle, 1024 bytes from 8 rows to the next 8; a step is 32 bytes further within the rows.
        const u32 x_at = shared_address(shared + from_slot * X_BYTES + half * (X_BYTES / 2)) >> 4;
        begin_products();
#pragma unroll
        for (int step = part * PART_STEPS; step < (part + 1) * PART_STEPS; step++)
          multiply(sum[half], a[in][step], x_at + 2 * step | 1ull << 16 | 64ull << 32 | 1ull << 62,
                   step > part * PART_STEPS || WHOLE && !first);
        commit_products();
      };
      auto add = [&](int half, int part, int in) {
#if !WHOLE
        const float low = GROUP ? low_number(scales[in][part], SCALE_BF16) : 1, high = GROUP ? high_number(scales[in][part], SCALE_BF16) : 1;
#pragma unroll
        for (int i = 0; i < NUMBERS; i++) total[half][i] += (i % 4 < 2 ? low : high) * (float)sum[half][i];
#endif
      };
      auto use = [&](int chunk, int in, bool last) {
        const int next_slot = slot == STAGES - 1 ? 0 : slot + 1, next_phase = slot == STAGES - 1 ? phase ^ 1 : phase;
        if (!last) {
          await_barrier(full + next_slot, next_phase);
          fetch(chunk + 1, in ^ 1, next_slot);
        }
#pragma unroll
        for (int part = 0; part < PARTS_OF_CHUNK; part++) {
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const bool end = part == PARTS_OF_CHUNK - 1;
            if (last && end && half == 1) await_products<0>();
            else await_products<1>();
            add(half, part, in);
            if (!end) start(half, part + 1, in, slot, false);
            else if (!last) start(half, 0, in ^ 1, next_slot, false);
          }
        }
        if (lane < CLUSTER) arrive_at(empty + slot, lane);
        slot = next_slot, phase = next_phase;
      };
      load_zeros(0);
      await_barrier(full + slot, phase);
      fetch(0, 0, slot);
      start(0, 0, 0, slot, true);
      start(1, 0, 0, slot, true);
      int chunk = 0;
      for (; chunk + 2 < chunks; chunk += 2) use(chunk, 0, false), use(chunk + 1, 1, false);
      if (chunk + 1 < chunks) use(chunk, 0, false), use(chunk + 1, 1, true);
      else use(chunk, 0, true);

      const int first_row = tile.row_block * BLOCK_ROWS;
      const u32 row_scales = GROUP ? 0 : __ldg(scale_from);
      const float low = GROUP ? CODE_UNIT : CODE_UNIT * low_number(row_scales, SCALE_BF16);
      const float high = GROUP ? CODE_UNIT : CODE_UNIT * high_number(row_scales, SCALE_BF16);
      await_warpgroup(warpgroup);  // all have stored the results before
#pragma unroll
      for (int j = 0; j < BLOCK_ROWS / 8; j += 2) {
        u32 pairs[4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const float2 s = __ldg((const float2*)(x_scale + first_row + (j + i) * 8 + 2 * c));
#if WHOLE
          const Sum* t = sum[(j + i) * 16 / BLOCK_ROWS] + (j + i) % (BLOCK_ROWS / 16) * 4;
#else
          const float* t = total[(j + i) * 16 / BLOCK_ROWS] + (j + i) % (BLOCK_ROWS / 16) * 4;
#endif
          pairs[2 * i] = pack2(t[0] * (low * s.x), t[1] * (low * s.y));
          pairs[2 * i + 1] = pack2(t[2] * (high * s.x), t[3] * (high * s.y));
        }
        // Fragments of 8 outputs and 8 rows, turned: a lane names a row of one.
        const char* to = results + ((j + lane / 16) * 8 + lane % 8) * PITCH + (warp * 16 + lane / 8 % 2 * 8) * 2;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};"
                     ::"r"(shared_address(to)), "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3]) : "memory");
      }
      await_warpgroup(warpgroup);
#pragma unroll 4
      for (int i = threadIdx.x % 128; i < BLOCK_ROWS * 8; i += 128) {
        const int row = first_row + i / 8, output = warpgroup * 64 + i % 8 * 8;
        if (row < rows && first_output + output < outputs)
          *(uint4*)(y + (long long)row * outputs + first_output + output) = *(const uint4*)(results + i / 8 * PITCH + output * 2);
      }
    }
  }
  await_cluster();  // a neighbour may still copy into this block's memory
}
