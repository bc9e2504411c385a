// What verification and fold share: one value head's state X = S^T [DIM values, DIM keys] in the registers of a block, a warp
// having 16 of its rows, and the pending drafts that join it. Compiled by NVRTC without any header.
//
// Macros that the host defines: BF16 (activations: 1 bf16, 0 fp16), STATE_FP16 (states: 1 fp16, 0 fp32), KEY_HEADS, VALUE_HEADS,
// WIDTH (taps of the convolution), DEPTH (drafts of a half of the ring), DRAFTS (that, as 8 or 16), GROUP (value heads of a
// block, all of one key head), EXTRA (warps of a block besides those that have the state), RESIDENT (blocks of a multiprocessor
// that registers are made to suffice for).

#define DIM 128
#define STATE_WARPS (DIM / 16)         // those that have the state
#define WARPS (STATE_WARPS + EXTRA)
#define THREADS (32 * WARPS)
#define LINES (THREADS / VECTORS)      // of threads, each for the vectors of a head
#define VECTORS (DIM / 8)              // 16-byte vectors of 16-bit numbers in a head
#define PITCH (DIM + 8)                // of shared tiles of 16-bit numbers: ldmatrix's eight rows lie in different banks
#define BEFORE (WIDTH - 1)             // inputs of the convolution before a token
#define CHANNELS ((2 * KEY_HEADS + VALUE_HEADS) * DIM)
#define RATIO (VALUE_HEADS / KEY_HEADS)
#define PARTS (2 + GROUP)              // heads of the convolution that a block has: of q, of k, and its value heads' of v

// Pairs of activations.
__device__ __forceinline__ float low_number(u32 pair) { return BF16 ? __uint_as_float(pair << 16) : low_half(pair); }
__device__ __forceinline__ float high_number(u32 pair) { return BF16 ? __uint_as_float(pair & 0xFFFF0000) : high_half(pair); }
__device__ __forceinline__ u32 pack_numbers(float low, float high) { return BF16 ? pack_bfloat(low, high) : pack_half(low, high); }

// Which of a ring's halves and drafts a slot has, counted in drafts.
struct Halves {
  int old_first, new_first;
  __device__ Halves(int slot, int parity) : old_first((slot * 2 + parity) * DEPTH), new_first((slot * 2 + 1 - parity) * DEPTH) {}
};

// The value heads of a block, their key head, and the channels of the convolution that belong to a part: q, k, each head's v.
struct Heads {
  int value, key;  // value: the first
  __device__ Heads() : value(blockIdx.x * GROUP), key(blockIdx.x * GROUP / RATIO) {}
  __device__ bool is_first() const { return value % RATIO == 0; }  // of the key head's blocks
  __device__ int channel(int part) const { return (part < 2 ? part * KEY_HEADS + key : 2 * KEY_HEADS + value + part - 2) * DIM; }
};

// Keys lie in shared memory in the order of a state's fragments: of every 32 columns, column 8a + 2j + e at 8j + 2a + e. So the
// eight columns from 8a on, a lane's 16 bytes of a state's row, are its pairs of four tiles.
__device__ __forceinline__ int place_of_pair(int pair) { return 32 * (pair / 16) + 8 * (pair % 4) + 2 * (pair / 4 % 4); }

#if STATE_FP16
typedef u16 Element;
#else
typedef float Element;
#endif

// A lane's first element of its warp's rows of a state in memory: row g, columns 8c. Its i-th vector of eight columns lies at a
// distance of vector_at(i): four times 32 columns of rows g and g + 8.
__device__ __forceinline__ Element* lane_rows(void* states, int slot, int value_head) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  return (Element*)states + (long long)slot * (VALUE_HEADS * DIM * DIM) + (value_head * DIM + 16 * warp + lane / 4) * DIM + lane % 4 * 8;
}
__device__ __forceinline__ constexpr int vector_at(int i) { return i % 2 * 8 * DIM + i / 2 * 32; }

// A warp's rows of a state on their way from memory.
struct Incoming {
#if STATE_FP16
  uint4 v[8];
  __device__ void load(const Element* rows) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = load_early(rows + vector_at(i));
  }
#else
  uint4 v[16];
  __device__ void load(const Element* rows) {
#pragma unroll
    for (int i = 0; i < 16; i++) v[i] = load_early(rows + vector_at(i / 2) + i % 2 * 4);
  }
#endif
};

// Calls a head's state to the second cache.
__device__ __forceinline__ void expect(const void* states, int slot, int value_head) {
  constexpr int head_bytes = DIM * DIM * (int)sizeof(Element);
  const char* head = (const char*)states + (long long)slot * (VALUE_HEADS * head_bytes) + value_head * head_bytes;
#pragma unroll
  for (int at = 0; at < head_bytes; at += THREADS * 128)
    if (at + threadIdx.x * 128 < head_bytes) prefetch(head + at + threadIdx.x * 128);
}

// The 16 rows of X that a warp has, as 16 tiles of 8 columns. Lane 4g + c has rows g and g + 8.
//
// zero: a 0 that the compiler cannot know to be one. Registers of a vector in memory and of an operand of mma are neighbours,
// but not the same ones; without an operation between them the compiler copies them for every product.
struct State {
#if STATE_FP16
  u32 x[16][2];

  __device__ State(const Incoming& from, u32 zero) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const u32 v[4] = {from.v[i].x, from.v[i].y, from.v[i].z, from.v[i].w};
#pragma unroll
      for (int j = 0; j < 4; j++) x[i / 2 * 4 + j][i % 2] = v[j] ^ zero;
    }
  }
  __device__ void store(Element* rows, u32 zero) const {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      u32 v[4];
#pragma unroll
      for (int j = 0; j < 4; j++) v[j] = x[i / 2 * 4 + j][i % 2] ^ zero;
      *(uint4*)(rows + vector_at(i)) = make_uint4(v[0], v[1], v[2], v[3]);
    }
  }
  __device__ void get(int tile, float factor, float (&d)[4]) const {
    d[0] = low_half(x[tile][0]) * factor, d[1] = high_half(x[tile][0]) * factor;
    d[2] = low_half(x[tile][1]) * factor, d[3] = high_half(x[tile][1]) * factor;
  }
  __device__ void set(int tile, const float (&d)[4]) { x[tile][0] = pack_half(d[0], d[1]), x[tile][1] = pack_half(d[2], d[3]); }
  __device__ void operand(int step, u32 (&a)[4]) const {  // columns 16 step ... 16 step + 15
    a[0] = x[2 * step][0], a[1] = x[2 * step][1], a[2] = x[2 * step + 1][0], a[3] = x[2 * step + 1][1];
  }
#else
  float x[16][4];

  __device__ State(const Incoming& from, u32) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
      const u32 v[4] = {from.v[i].x, from.v[i].y, from.v[i].z, from.v[i].w};
#pragma unroll
      for (int j = 0; j < 4; j++) x[i / 4 * 4 + i % 2 * 2 + j / 2][i / 2 % 2 * 2 + j % 2] = __uint_as_float(v[j]);
    }
  }
  __device__ void store(Element* rows, u32) const {
#pragma unroll
    for (int i = 0; i < 16; i++) {
      const float(&low)[4] = x[i / 4 * 4 + i % 2 * 2], (&high)[4] = x[i / 4 * 4 + i % 2 * 2 + 1];
      *(float4*)(rows + vector_at(i / 2) + i % 2 * 4) =
          make_float4(low[i / 2 % 2 * 2], low[i / 2 % 2 * 2 + 1], high[i / 2 % 2 * 2], high[i / 2 % 2 * 2 + 1]);
    }
  }
  __device__ void get(int tile, float factor, float (&d)[4]) const {
#pragma unroll
    for (int e = 0; e < 4; e++) d[e] = x[tile][e] * factor;
  }
  __device__ void set(int tile, const float (&d)[4]) {
#pragma unroll
    for (int e = 0; e < 4; e++) x[tile][e] = d[e];
  }
  __device__ void operand(int step, u32 (&a)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = pack_half(x[2 * step + i / 2][i % 2 * 2], x[2 * step + i / 2][i % 2 * 2 + 1]);
  }
#endif

  // X <- keep X + d k, with d [16, 16] as mma's left operand and keys [16, DIM]; rounded to the states' type.
  __device__ void add(const u32 (&d)[4], const u16 (*keys)[PITCH], float keep, int lane) {
#pragma unroll
    for (int n = 0; n < 16; n += 2) {
      u32 k[4];
      load_transposed(k, &keys[lane % 16][8 * n + lane / 16 * 8]);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float sum[4];
        get(n + i, keep, sum);
        mma(sum, d, k[2 * i], k[2 * i + 1]);
        set(n + i, sum);
      }
    }
  }

  // The same with d [16, 8] and keys [8, DIM].
  __device__ void add(const u32 (&d)[2], const u16 (*keys)[PITCH], float keep, int lane) {
#pragma unroll
    for (int n = 0; n < 16; n += 4) {
      u32 k[4];
      load_transposed(k, &keys[lane % 8][8 * n + lane / 8 * 8]);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float sum[4];
        get(n + i, keep, sum);
        mma(sum, d, k[i]);
        set(n + i, sum);
      }
    }
  }
};

// One half of a ring in shared memory, with zeros for what is not pending.
struct Drafts {
  u16 keys[DRAFTS][PITCH];    // in fragment order
  u16 deltas[GROUP][DRAFTS][PITCH];
  float decays[GROUP][DRAFTS];

  // Where a thread's share of it lies in memory. there: whether it is pending.
  struct Source {
    const u16 *key, *delta;
    const float* decay;
    bool there;
    __device__ Source(
        const u16* ring_keys, const u16* ring_deltas, const float* ring_decays, const Heads& heads, int first, int pending) {
      const int at = threadIdx.x % VECTORS * 8, draft = threadIdx.x / VECTORS % DRAFTS, from = draft < pending ? first + draft : first;
      key = ring_keys + (long long)from * (KEY_HEADS * DIM) + (heads.key * DIM + at);
      delta = ring_deltas + (long long)from * (VALUE_HEADS * DIM) + (heads.value * DIM + at);
      decay = ring_decays + (long long)from * VALUE_HEADS + (heads.value + at / 8);
      there = draft < pending;
    }
    // Calls it to the second cache.
    __device__ void expect() const {
      if (!there) return;
      prefetch(key), prefetch(decay);
#pragma unroll
      for (int h = 0; h < GROUP; h++) prefetch(delta + h * DIM);
    }
  };

  __device__ void copy(const Source& from) {
    constexpr int sets = LINES / DRAFTS;  // of threads, one for each vector of the drafts of a head
    const int line = threadIdx.x / VECTORS, draft = line % DRAFTS, set = line / DRAFTS, at = threadIdx.x % VECTORS * 8;
    if (set == 0) {
      u16* place = &keys[draft][place_of_pair(at / 2)];
#pragma unroll
      for (int pair = 0; pair < 4; pair++) copy_async<4>(place + 8 * pair, from.key + 2 * pair, from.there);
    }
    if (set >= sets) return;
#pragma unroll
    for (int h = 0; h < GROUP; h++)
      if (set == sets - 1 - h % sets) copy_async<16>(&deltas[h][draft][at], from.delta + h * DIM, from.there);
    if (set == sets - 1 && at < 8 * GROUP) copy_async<4>(&decays[at / 8][draft], from.decay, from.there);
  }

  // X of the block's head h after `pending` drafts.
  __device__ void fold(State& x, int h, int pending, int warp, int lane) const {
    if (!pending) return;
    const float end = decays[h][pending - 1];
    u32 d[DRAFTS / 4];
    load_transposed(d, &deltas[h][lane % 8 + (DRAFTS > 8 ? lane / 16 * 8 : 0)][16 * warp + lane / 8 % 2 * 8]);
#pragma unroll
    for (int half = 0; half < DRAFTS / 8; half++) {  // what is not pending has d = 0; e^{end} bounds its weight
      const float2 decay = *(const float2*)&decays[h][8 * half + lane % 4 * 2];
      const float low = exponential(end - decay.x), high = exponential(end - decay.y);
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; i++) d[i] = pack_half(low_half(d[i]) * low, high_half(d[i]) * high);
    }
    x.add(d, keys, exponential(end), lane);
  }
};
