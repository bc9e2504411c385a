// One token of every row: convolution, gated delta rule and gated norm in one launch, a block for one value head of one row.
// Follows gated_delta_verify's primitives.
//
// X = S^T [DIM values, DIM keys] is read once and written once, in fp16; sixteen lanes have a row of it, a thread 8 columns of
// 16 rows. Blocks of one key head all read its tails of q and k, so the last of them to have read them moves them on.
//
// Macros: BF16 (activations: 1 bf16, 0 fp16), KEY_HEADS, VALUE_HEADS, WIDTH (taps of the convolution, at least 2), RESIDENT
// (blocks of a multiprocessor that registers are made to suffice for), ARRIVALS (rows times key heads, at most). One launch at a
// time on a device may count in `arrivals`.

#define DIM 128
#define WARPS 4
#define BEFORE (WIDTH - 1)             // inputs before the token
#define RATIO (VALUE_HEADS / KEY_HEADS)
#define CHANNELS ((2 * KEY_HEADS + VALUE_HEADS) * DIM)
#define ROWS 16                        // of a thread
#define VECTORS (DIM / 8)              // 16-byte vectors of a row of X
#define KEY_EPS 1e-6f

__device__ u32 arrivals[RATIO > 1 ? ARRIVALS : 1];  // blocks of each row's key heads; back at zero after every launch

__device__ __forceinline__ float number(u16 x) { return BF16 ? __uint_as_float((u32)x << 16) : low_half(x); }
__device__ __forceinline__ u16 rounded(float x) { return (u16)(BF16 ? pack_bfloat(x, 0.0f) : pack_half(x, 0.0f)); }

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + exponential(-x)); }
__device__ __forceinline__ float softplus(float x) {
  const float e = exponential(fminf(x, 20.0f));
  return x > 20.0f ? x : e < 1e-3f ? e - 0.5f * e * e : __logf(1.0f + e);  // log(1 + e) loses a small e's digits
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int far = 16; far; far /= 2) x += __shfl_xor_sync(~0u, x, far);
  return x;
}

// Sums over sixteen lanes of 8 numbers at once: lane 2 i or 2 i + 1 gets that of number i.
__device__ __forceinline__ float spread_sums(float (&x)[8], int lane) {
#pragma unroll
  for (int far = 8, left = 4; left; far /= 2, left /= 2) {
    const bool upper = lane & far;
#pragma unroll
    for (int i = 0; i < left; i++) {
      const float keep = upper ? x[i + left] : x[i], give = upper ? x[i] : x[i + left];
      x[i] = keep + __shfl_xor_sync(~0u, give, far);
    }
  }
  return x[0] + __shfl_xor_sync(~0u, x[0], 1);
}

__device__ __forceinline__ void unpack(float (&x)[8], const uint4& v) {
  x[0] = low_half(v.x), x[1] = high_half(v.x), x[2] = low_half(v.y), x[3] = high_half(v.y);
  x[4] = low_half(v.z), x[5] = high_half(v.z), x[6] = low_half(v.w), x[7] = high_half(v.w);
}

// Moves a channel's inputs on by one, in the thread that reads it.
__device__ __forceinline__ void move_on(u16* tail, const u16* row, int channel) {
#pragma unroll
  for (int w = 0; w < BEFORE; w++)
    tail[w * CHANNELS + channel] = w + 1 < BEFORE ? tail[(w + 1) * CHANNELS + channel] : row[channel];
}

// Asks for what will be read once the kernels before have finished; where a slot is not yet what it will be, for nothing.
__device__ __forceinline__ void prefetch(
    const uint4* states, const u16* tails, const long long* slots, int row, int slot_count, int head, int key) {
#if __CUDA_ARCH__ >= 900
  const int t = threadIdx.x;
  const long long slot = min(max(load_now(slots + row), 0LL), slot_count - 1LL);
  const uint4* state = states + (slot * VALUE_HEADS + head) * DIM * VECTORS;
  prefetch(state + 8 * t), prefetch(state + 8 * t + DIM * VECTORS / 2);
  const int part = t / 2 % 3, before = t / 6;  // two lines of each head of inputs
  const int channel = part < 2 ? part * KEY_HEADS + key : 2 * KEY_HEADS + head;
  const u16* line = tails + (slot * BEFORE + before) * CHANNELS + channel * DIM + t % 2 * 64;
  if (before < BEFORE) prefetch(line);
#endif
}

// row_index, token_index: which rows of the batch and which of its tokens; without them neighbours from first_row, first_token on. A
// row whose token is -1 has none.
extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT) decode(
    const u16* qkvz, const u16* ab, const u16* conv, const float* a_log, const float* dt_bias, const float* norm, u16* tails,
    uint4* states, const long long* slots, const long long* row_index, const long long* token_index, u16* out,
    int first_row, int first_token, int slot_count, float eps, float scale, long long qkvz_stride, long long ab_stride) {
  __shared__ __align__(16) float queries[DIM], keys[DIM];
  __shared__ float values[DIM], outputs[DIM], sums[4][WARPS];
  __shared__ int moves;
  const int t = threadIdx.x, lane = t % 32, warp = t / 32, head = blockIdx.x, key = head / RATIO;
  const int channel[3] = {key * DIM + t, (KEY_HEADS + key) * DIM + t, (2 * KEY_HEADS + head) * DIM + t};  // q's, k's, v's

  let_next_kernel_start();
  float taps[3][WIDTH];
#pragma unroll
  for (int part = 0; part < 3; part++)
#pragma unroll
    for (int w = 0; w < WIDTH; w++) taps[part][w] = number(conv[w * CHANNELS + channel[part]]);
  const float rate = exponential(a_log[head]), bias = dt_bias[head], weight = norm[t];
  if (!row_index) prefetch(states, tails, slots, first_row + blockIdx.y, slot_count, head, key);
  await_previous_kernel();

  const long long token = token_index ? token_index[blockIdx.y] : first_token + (int)blockIdx.y;
  if (token < 0) return;
  const long long slot = slots[row_index ? row_index[blockIdx.y] : first_row + (int)blockIdx.y];
  const u16* row = qkvz + token * qkvz_stride;
  u16* tail = tails + slot * BEFORE * CHANNELS;
  float inputs[3][WIDTH];
#pragma unroll
  for (int part = 0; part < 3; part++) {
    inputs[part][BEFORE] = number(row[channel[part]]);
#pragma unroll
    for (int w = 0; w < BEFORE; w++) inputs[part][w] = number(tail[w * CHANNELS + channel[part]]);
  }
  const float gate = number(row[CHANNELS + head * DIM + t]);
  const float a = number(ab[token * ab_stride + head]), b = number(ab[token * ab_stride + VALUE_HEADS + head]);
  uint4* mine = states + (slot * VALUE_HEADS + head) * DIM * VECTORS + t;  // rows t / 16, 8 + t / 16, ...
  uint4 x[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; i++) x[i] = load_early(mine + i * 8 * VECTORS);

  float mixed[3];
#pragma unroll
  for (int part = 0; part < 3; part++) {
    float y = 0.0f;
#pragma unroll
    for (int w = 0; w < WIDTH; w++) y += taps[part][w] * inputs[part][w];
    mixed[part] = y * sigmoid(y);
  }
  queries[t] = mixed[0], keys[t] = mixed[1], values[t] = mixed[2];
  const float squares[3] = {warp_sum(mixed[0] * mixed[0]), warp_sum(mixed[1] * mixed[1]), warp_sum(mixed[0] * mixed[1])};
  if (lane == 0) sums[0][warp] = squares[0], sums[1][warp] = squares[1], sums[2][warp] = squares[2];
  move_on(tail, row, channel[2]);
  __syncthreads();  // all of the tails has been read, too
  u32 before_me = RATIO - 1;
  if (t == 0 && RATIO > 1) before_me = atomicAdd(&arrivals[blockIdx.y * KEY_HEADS + key], 1);
  float totals[3] = {};
#pragma unroll
  for (int w = 0; w < WARPS; w++) totals[0] += sums[0][w], totals[1] += sums[1][w], totals[2] += sums[2][w];
  const float of_q = rsqrtf(totals[0] + KEY_EPS) * scale, of_k = rsqrtf(totals[1] + KEY_EPS);
  const float keep = exponential(-rate * softplus(a + bias)), beta = sigmoid(b);
  const int column = lane % 16 * 8;
  float k[8], own_k = 0.0f, own_q = 0.0f;  // of the row of X that is this thread's alone
#pragma unroll
  for (int j = 0; j < 8; j++) k[j] = keys[column + j] * of_k;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float q[8], with_k[8], with_q[8];
#pragma unroll
    for (int j = 0; j < 8; j++) q[j] = queries[column + j] * of_q;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      float from[8];
      unpack(from, x[8 * half + i]);
      with_k[i] = with_q[i] = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; j++) with_k[i] += from[j] * k[j], with_q[i] += from[j] * q[j];
    }
    const float for_k = spread_sums(with_k, lane), for_q = spread_sums(with_q, lane);
    if (lane % 2 == half) own_k = for_k, own_q = for_q;
  }
  const u32 zero = (u32)slot_count >> 31;  // without it what was unpacked above would be kept, in twice the registers
  const int own = (lane % 2 * 8 + lane % 16 / 2) * 8 + 2 * warp + lane / 16;
  const float delta = beta * (values[own] - keep * own_k), y = keep * own_q + totals[2] * of_q * of_k * delta;
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    const float added = __shfl_sync(~0u, delta, lane / 16 * 16 + i % 8 * 2 + i / 8);
    float to[8];
    unpack(to, make_uint4(x[i].x ^ zero, x[i].y ^ zero, x[i].z ^ zero, x[i].w ^ zero));
#pragma unroll
    for (int j = 0; j < 8; j++) to[j] = to[j] * keep + added * k[j];
    mine[i * 8 * VECTORS] =
        make_uint4(pack_half(to[0], to[1]), pack_half(to[2], to[3]), pack_half(to[4], to[5]), pack_half(to[6], to[7]));
  }
  outputs[own] = y;
  const float square = warp_sum(y * y);
  if (lane == 0) sums[3][warp] = square;
  if (t == 0) moves = before_me == RATIO - 1;
  __syncthreads();
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < WARPS; w++) total += sums[3][w];
  const float normed = outputs[t] * rsqrtf(total / DIM + eps) * weight;
  out[(token * VALUE_HEADS + head) * DIM + t] = rounded(normed * gate * sigmoid(gate));
  if (!moves) return;
  move_on(tail, row, channel[0]), move_on(tail, row, channel[1]);
  if (t == 0 && RATIO > 1) arrivals[blockIdx.y * KEY_HEADS + key] = 0;
}
