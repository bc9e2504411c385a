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
    if (tile * 16 < outputs) store_as_is(scaled(v, tile), row, tile);
  }
  __device__ __forceinline__ void store_as_is(float4 v, int row, int tile) const {
    if (tile * 16 >= outputs) return;
    const uint2 four = rounded(v);
    if (is_row(row)) *(uint2*)(y + place(row, tile)) = four;
  }
  __device__ __forceinline__ float4 scaled(float4 v, int tile) const {  // where a row has one scale
    if (GROUP) return v;
    const u32 s = __ldg(scale + tile * 8 + threadIdx.x % 32 / 4);
    const float low = low_number(s, SCALE_BF16), high = high_number(s, SCALE_BF16);
    return make_float4(v.x * low, v.y * low, v.z * high, v.w * high);
  }
  // In y's type, of this lane's row the four outputs that lie at its place.
  __device__ __forceinline__ uint2 rounded(float4 v) const {
    const int c = threadIdx.x % 4;
    const u32 low = transpose(pack2(v.x, v.y)), high = transpose(pack2(v.z, v.w));  // row g, outputs 2 c (+ 1), and 8 more
    const u32 other = __shfl_xor_sync(~0u, c % 2 ? low : high, 1);
    return c % 2 ? make_uint2(other, high) : make_uint2(low, other);
  }
  __device__ __forceinline__ bool is_row(int row) const { return row + threadIdx.x % 32 / 4 < rows; }
  __device__ __forceinline__ int output(int tile) const { return tile * 16 + threadIdx.x % 2 * 8 + threadIdx.x % 4 / 2 * 4; }
  __device__ __forceinline__ long long place(int row, int tile) const {
    return (long long)(row + threadIdx.x % 32 / 4) * outputs + output(tile);
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

// What becomes of sums where store(sum, tile, i) is all that is done with them.
template <typename Store> struct Stored {
  Store its_store;
  int tile;
  __device__ __forceinline__ void begin(int its_tile) { tile = its_tile; }
  __device__ __forceinline__ int ask(int) const { return 0; }
  __device__ __forceinline__ void store(float4 sum, int i, int) const { its_store(sum, tile, i); }
  __device__ __forceinline__ void end(int, int) const {}
};

// COUNT float4 of each thread's sums, in tiles that several workers share; LOOKS of them, or BATCH parts of one, are looked for at a time. SPLIT (a macro):
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
  // With SPLIT, at the end, for this worker's part of the tiles that it shares: to.begin(tile), for each i of it to.store(sum, i, asked) with
  // what to.ask(i) gave before sums were waited for, and to.end(first i, last i + 1).
  template <typename To> __device__ __forceinline__ void finish_with(To& to_whom) const {
    if (!SPLIT) return;
    const int end = work.begin + work.count - work.whole;
    for (int at = work.begin; at < end;) {
      const int index = at / work.steps, begin = index * work.steps, tile = work.first_tile + index;
      const bool is_whole = at == begin && begin + work.steps <= end;
      at = begin + work.steps;
      if (is_whole) continue;
      const int first = work.owner(begin), share = work.owner(begin + work.steps - 1) - first + 1, me = work.worker - first;
      const int from = COUNT * me / share, to = COUNT * (me + 1) / share;
      to_whom.begin(tile);
      float4* const head = sums + (long long)(first * 2 + 1) * worker_vectors;
      auto further = [&](int other) { return (other == 0 ? 1 : 2) * worker_vectors; };  // the first begins in the tile, the others end in it
      uint4 next_seen[BATCH];
      decltype(to_whom.ask(0)) next_asked;
      auto ask = [&](int i) {
        const float4* of = head + i * 32;
#pragma unroll
        for (int other = 0; other < BATCH; of += further(other), other++)
          if (other < share) next_seen[other] = look(of);
        next_asked = to_whom.ask(i);
      };
      if (from < to) ask(from);
#pragma unroll 1  // what is run once is not in a cache: less text is faster
      for (int i = from; i < to; i++) {
        uint4 seen[BATCH];
#pragma unroll
        for (int other = 0; other < BATCH; other++) seen[other] = next_seen[other];
        const auto asked = next_asked;
        if (i + 1 < to) ask(i + 1);
        float4 sum = make_float4(0, 0, 0, 0), *of = head + i * 32;
        auto add = [&](uint4 v) {
          const float4 its = receive(v, of);
          sum.x += its.x, sum.y += its.y, sum.z += its.z, sum.w += its.w;
        };
#pragma unroll
        for (int other = 0; other < BATCH; of += further(other), other++)
          if (other < share) add(seen[other]);
#pragma unroll 1
        for (int other = BATCH; other < share; of += further(other), other++) add(look(of));
        __syncwarp();
        to_whom.store(sum, i, asked);
      }
      to_whom.end(from, to);
    }
  }
  template <typename Store> __device__ __forceinline__ void finish(Store store) const {
    Stored<Store> stored{store, 0};
    finish_with(stored);
  }
};
