// Tiles of y shared by blocks: which inputs of which tiles each block has, and how sums of one tile come together. A block is on its
// processor for the whole launch; sums that it adds for others go through `sums` in float32 and are added in the order of the inputs, the
// same bits every time.

// Which units a worker (a block, or a cluster of blocks) has, and where they lie. Each has `waves` whole tiles of y, then an equal share
// of the units (a tile and CHUNK inputs) of the tiles that remain, in their order, so that none waits for a last round.
struct Work {
  int worker, workers, steps, whole, first_tile, begin, count;  // steps: units of a tile; whole: units of whole tiles, before the share
  int shared_units, row_blocks, row_band, output_blocks;

  __device__ Work(int worker, int workers, int row_blocks, int output_blocks, int steps, int waves, int row_band)
      : worker(worker), workers(workers), steps(steps), whole(waves * steps), first_tile(waves * workers), row_blocks(row_blocks),
        row_band(row_band), output_blocks(output_blocks) {
    shared_units = (row_blocks * output_blocks - first_tile) * steps;
    begin = first_unit(worker);
    count = whole + first_unit(worker + 1) - begin;
  }
  __device__ int first_unit(int of) const { return (u32)(shared_units * of) / (u32)workers; }  // at most 2 workers' tiles are shared
  __device__ int owner(int unit) const { return (u32)((unit + 1) * workers - 1) / (u32)shared_units; }
  __device__ void place(int unit, int& tile, int& step) const {  // unit: 0 ... count - 1
    const bool is_whole = unit < whole;
    const int at = is_whole ? unit : begin + unit - whole;
    tile = is_whole ? worker + at / steps * workers : first_tile + at / steps;
    step = at % steps;
  }
  // Bands of row_band blocks of rows, and in a band the rows run fastest, so that what runs at a time shares weights and x.
  __device__ void blocks(int tile, int& row_block, int& output_block) const {
    const int band = tile / (row_band * output_blocks), in_band = min(row_band, row_blocks - band * row_band);
    const int at = tile - band * row_band * output_blocks;
    row_block = band * row_band + at % in_band, output_block = at / in_band;
  }
};

__device__ __forceinline__ u32 transpose(u32 a) {  // an 8x8 matrix of 16-bit numbers that the warp holds
  u32 d;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}

// Eight rows' sums of a warp's 16 outputs, as mma leaves them: row 2 c (+ 1), outputs g and g + 8.
struct Target {
  u16* y;
  const u32* scale;
  int rows, outputs;

  __device__ __forceinline__ void store(float4 v, int row, int tile) const {
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    if (tile * 16 >= outputs) return;
    if (!GROUP) {
      const u32 s = __ldg(scale + tile * 8 + g);
      const float low = low_number(s, SCALE_BF16), high = high_number(s, SCALE_BF16);
      v.x *= low, v.y *= low, v.z *= high, v.w *= high;
    }
    const u32 low = transpose(pack2(v.x, v.y)), high = transpose(pack2(v.z, v.w));  // row g, outputs 2 c (+ 1), and 8 more
    const u32 other = __shfl_xor_sync(~0u, c % 2 ? low : high, 1);
    const int output = tile * 16 + c % 2 * 8 + c / 2 * 4;
    if (row + g < rows)
      *(uint2*)(y + (long long)(row + g) * outputs + output) = c % 2 ? make_uint2(other, high) : make_uint2(low, other);
  }
};

// Sums on their way to another block: a number is there once it is not UNWRITTEN, which no sum is. Who reads it writes that again.
#define UNWRITTEN 0xFFFFFFFFu
__device__ __forceinline__ float written(float sum) { return __uint_as_float(__float_as_uint(sum) == UNWRITTEN ? 0x7FFFFFFFu : __float_as_uint(sum)); }
__device__ __forceinline__ void send(float4* at, float a, float b, float c, float d) { __stcg(at, make_float4(written(a), written(b), written(c), written(d))); }
__device__ __forceinline__ uint4 look(const float4* at) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
  return v;
}
__device__ __forceinline__ float4 receive(uint4 v, float4* at) {  // v: what the first look saw
  while (v.x == UNWRITTEN || v.y == UNWRITTEN || v.z == UNWRITTEN || v.w == UNWRITTEN) v = look(at);
  __stcg((uint4*)at, make_uint4(UNWRITTEN, UNWRITTEN, UNWRITTEN, UNWRITTEN));
  return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}

// COUNT float4 of each thread's sums, in tiles that several workers share; LOOKS or BATCH of them are looked for at a time. SPLIT (a macro):
// 0: the worker that has a tile's first inputs, which are its last, adds what the others have sent; 1: each of them, at its end, adds a
// part. So none waits for what is not under way.
template <int COUNT, int LOOKS, int BATCH> struct Shared {
  const Work& work;
  float4* sums;        // of this thread: [workers, 2: of a tile that the worker ends in, of one that it begins in]
  int worker_vectors;  // of a tile

  // A worker's sums of `length` units from `step` on: sent, or made whole. Whether the tile is now to be stored.
  __device__ __forceinline__ bool collect(float* total, int tile, int step, int length) const {
    if (length == work.steps) return true;
    if (SPLIT || step > 0) {
      float4* at = sums + (long long)(work.worker * 2 + (step == 0)) * worker_vectors;
#pragma unroll
      for (int i = 0; i < COUNT; i++) send(at + i * 32, total[4 * i], total[4 * i + 1], total[4 * i + 2], total[4 * i + 3]);
      return false;
    }
    const int last = work.owner((tile - work.first_tile + 1) * work.steps - 1);
    for (int other = work.worker + 1; other <= last; other++) {
      float4* at = sums + (long long)other * 2 * worker_vectors;
#pragma unroll
      for (int i = 0; i < COUNT; i += LOOKS) {
        uint4 seen[LOOKS];
#pragma unroll
        for (int j = 0; j < LOOKS && i + j < COUNT; j++) seen[j] = look(at + (i + j) * 32);
#pragma unroll
        for (int j = 0; j < LOOKS && i + j < COUNT; j++) {
          const float4 v = receive(seen[j], at + (i + j) * 32);
          float* sum = total + 4 * (i + j);
          sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
        }
      }
    }
    __syncwarp();
    return true;
  }
  // With SPLIT, at the end: store(sum, tile, i) for this worker's part of the tiles that it shares.
  template <typename Store> __device__ __forceinline__ void finish(Store store) const {
    if (!SPLIT) return;
    const int end = work.begin + work.count - work.whole;
    for (int at = work.begin; at < end;) {
      const int index = at / work.steps, begin = index * work.steps, tile = work.first_tile + index;
      const bool is_whole = at == begin && begin + work.steps <= end;
      at = begin + work.steps;
      if (is_whole) continue;
      const int first = work.owner(begin), share = work.owner(begin + work.steps - 1) - first + 1, me = work.worker - first;
      const int from = COUNT * me / share, to = COUNT * (me + 1) / share, looks = (to - from) * share;
      float4* const head = sums + (long long)(first * 2 + 1) * worker_vectors;  // the others end in the tile
      auto next = [&](int& i, int& other, float4*& place) {
        place += (other == 0 ? 1 : 2) * worker_vectors;
        if (++other == share) other = 0, i++, place = head + i * 32;
      };
      int looked_i = from, looked_other = 0, i = from, other = 0;
      float4 *looked_at = head + from * 32, *taken_at = looked_at, sum = make_float4(0, 0, 0, 0);
      for (int n = 0; n < looks; n += BATCH) {
        uint4 seen[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++)
          if (n + j < looks) {
            seen[j] = look(looked_at);
            next(looked_i, looked_other, looked_at);
          }
#pragma unroll
        for (int j = 0; j < BATCH; j++)
          if (n + j < looks) {
            const float4 v = receive(seen[j], taken_at);
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
            if (other == share - 1) {
              __syncwarp();
              store(sum, tile, i);
              sum = make_float4(0, 0, 0, 0);
            }
            next(i, other, taken_at);
          }
      }
    }
  }
};
