// First of a prefill's two kernels: one chunk of a row, for one key head and its value heads. Convolution, unit vectors, and with the
// cumulated log decay c, beta and D_ij = e^(c_i - c_j) what `walk` needs besides: P = Q K^T * D for i >= j, and M = (I + B L)^-1 B with
// L = K K^T * D for i > j and B = diag(beta). M comes by halves: in blocks of 16 by substitution, m_i = beta_i (e_i - sum_j<i L_ij m_j), in
// fp32, and then, since neighbouring blocks leave -M_22 L_21 M_11 between them, by products of fp16. Grid [KEY_HEADS, pieces].
#define NORM_EPS 1e-6f
#define TOKENS 4  // that a lane convolves one after the other
#define M_AT UNIT_BYTES
#define L_AT (M_AT + GROUP * 2 * TILE_BYTES)
#define GATES_AT (L_AT + GROUP * TILE_BYTES)

__device__ __forceinline__ void unpack(float (&v)[8], const uint4& raw) {
  const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    v[2 * i] = BF16 ? __uint_as_float(words[i] << 16) : low_half(words[i]);
    v[2 * i + 1] = BF16 ? __uint_as_float(words[i] & 0xFFFF0000u) : high_half(words[i]);
  }
}
__device__ __forceinline__ float number(const u16* at) { return BF16 ? __uint_as_float((u32)*at << 16) : low_half(*at); }
__device__ __forceinline__ uint4 packed(const float (&v)[8]) {
  return make_uint4(pack_half(v[0], v[1]), pack_half(v[2], v[3]), pack_half(v[4], v[5]), pack_half(v[6], v[7]));
}
__device__ __forceinline__ float sigmoid(float x) { return reciprocal(1 + exponential(-x)); }

// A row's inputs and the tail before them, from some channel on.
struct Inputs {
  const u16 *x, *tail, *conv;
  long long stride;
  int tokens;

  __device__ __forceinline__ uint4 load(int channel, int token) const {
    if (token < 0) return *(const uint4*)(tail + (token + WIDTH - 1) * CHANNELS + channel);
    return token < tokens ? *(const uint4*)(x + token * stride + channel) : make_uint4(0, 0, 0, 0);
  }
  // each(t, y) with what becomes of eight channels of tokens first ... first + TOKENS - 1; zeros behind the row.
  template <class Each> __device__ __forceinline__ void convolve(int channel, int first, Each each) const {
    uint4 raw[TOKENS + WIDTH - 1];
#pragma unroll
    for (int u = 0; u < TOKENS + WIDTH - 1; u++) raw[u] = load(channel, first + u - (WIDTH - 1));
    float taps[WIDTH][8], window[WIDTH][8];
#pragma unroll
    for (int w = 0; w < WIDTH; w++) unpack(taps[w], *(const uint4*)(conv + w * CHANNELS + channel));
#pragma unroll
    for (int u = 0; u < WIDTH - 1; u++) unpack(window[u], raw[u]);
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
      unpack(window[(t + WIDTH - 1) % WIDTH], raw[t + WIDTH - 1]);
      float y[8];
#pragma unroll
      for (int i = 0; i < 8; i++) {
        float total = 0;
#pragma unroll
        for (int w = 0; w < WIDTH; w++) total += taps[w][i] * window[(t + w) % WIDTH][i];
        y[i] = first + t < tokens ? total * sigmoid(total) : 0;
      }
      each(t, y);
    }
  }
};

__device__ __forceinline__ float log_decay(float a, float a_log, float dt_bias) {
  const float x = a + dt_bias, e = exponential(fminf(x, 20.0f));
  const float soft = e < 1e-3f ? e - 0.5f * e * e : __logf(1 + e);  // log(1 + e) loses a small e's digits
  return -exponential(a_log) * (x > 20 ? x : soft);
}

// Blocks of 16 by 16 of a tile: as the left operand, as the right one, and sums.
struct Blocks {
  char* tile;
  int lane;

  __device__ __forceinline__ void left(u32 (&a)[4], int row, int column) const {
    load_matrices(a, tile + place(16 * row + lane % 16, 2 * column + lane / 16));
  }
  __device__ __forceinline__ void add_product(float (&sums)[2][4], const u32 (&a)[4], int row, int column) const {
    u32 b[4];
    load_transposed(b, tile + place(16 * row + lane % 16, 2 * column + lane / 16));
    mma(sums[0], a, b[0], b[1]), mma(sums[1], a, b[2], b[3]);
  }
  __device__ __forceinline__ void store(const float (&sums)[2][4], int row, int column) const {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int e = 0; e < 4; e += 2)
        *(u32*)(tile + place(16 * row + lane / 4 + 4 * e, 2 * column + n) + lane % 4 * 4) = pack_half(sums[n][e], sums[n][e + 1]);
  }
};
__device__ __forceinline__ void negated(u32 (&a)[4], const float (&sums)[2][4]) {  // as a left operand
#pragma unroll
  for (int i = 0; i < 4; i++) a[i] = pack_half(-sums[i / 2][i % 2 * 2], -sums[i / 2][i % 2 * 2 + 1]);
}

extern "C" __global__ void __launch_bounds__(256, RESIDENT) prepare(
    const u16* __restrict__ qkvz, const u16* __restrict__ ab, const u16* __restrict__ conv, const float* __restrict__ a_log,
    const float* __restrict__ dt_bias, u16* tails, const long long* __restrict__ slots, const int* __restrict__ pieces, char* units,
    char* heads, int qkvz_stride, int ab_stride) {
  extern __shared__ __align__(1024) uint4 memory[];
  char* const shared = (char*)memory;
  float *const decays = (float*)(shared + GATES_AT), *const betas = decays + GROUP * SIZE;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = lane / 16, sub = lane % 16, g = lane / 4, c = lane % 4;
  const int key_head = blockIdx.x, first_head = key_head * GROUP;
  let_next_kernel_start();
  await_previous_kernel();
  const int* entry = pieces + 4 * blockIdx.y;
  const int row = entry[0], start = entry[1], tokens = entry[2], before = entry[3];
  if (before >= tokens) return;
  u16* const tail = tails + slots[row] * ((WIDTH - 1) * CHANNELS);
  const Inputs inputs = {qkvz + (long long)start * qkvz_stride, tail, conv, qkvz_stride, tokens};
  char* const unit = units + ((long long)blockIdx.y * KEY_HEADS + key_head) * UNIT_BYTES;
  char* const records = heads + ((long long)blockIdx.y * HEADS + first_head) * HEAD_BYTES;

  if (warp < GROUP) {  // a lane has two tokens
    const int head = first_head + warp;
    float gates[2], sum = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int t = 2 * lane + i;
      const u16* at = ab + (long long)(start + before + t) * ab_stride + head;
      const bool live = before + t < tokens;
      gates[i] = live ? log_decay(number(at), a_log[head], dt_bias[head]) : 0;
      betas[warp * SIZE + t] = live ? sigmoid(number(at + HEADS)) : 0;
      sum += gates[i];
    }
#pragma unroll
    for (int back = 1; back < 32; back *= 2) {
      const float other = __shfl_up_sync(~0u, sum, back);
      if (lane >= back) sum += other;
    }
    decays[warp * SIZE + 2 * lane] = sum - gates[1], decays[warp * SIZE + 2 * lane + 1] = sum;
  }
#pragma unroll 1
  for (int first = TOKENS * warp; first < SIZE; first += 8 * TOKENS) {  // half a warp has keys, the other queries
    const int channel = (half ? 0 : KEY_HEADS * D) + key_head * D + 8 * sub;
    inputs.convolve(channel, before + first, [&](int t, float (&y)[8]) {
      float squares = 0;
#pragma unroll
      for (int i = 0; i < 8; i++) squares += y[i] * y[i];
#pragma unroll
      for (int other = 8; other; other /= 2) squares += __shfl_xor_sync(~0u, squares, other);
      const float scale = rsqrtf(squares + NORM_EPS) * (half ? 0.08838834764831845f : 1.0f);  // D^-1/2
#pragma unroll
      for (int i = 0; i < 8; i++) y[i] *= scale;
      *(uint4*)(shared + (sub / 8 * 2 + half) * TILE_BYTES + place(first + t, sub % 8)) = packed(y);
    });
  }
#pragma unroll 1
  for (int task = 2 * warp + half; task < GROUP * (SIZE / TOKENS); task += 16) {
    const int in_group = task / (SIZE / TOKENS), first = task % (SIZE / TOKENS) * TOKENS;
    const int channel = (2 * KEY_HEADS + first_head + in_group) * D + 8 * sub;
    char* const values = records + in_group * HEAD_BYTES + sub / 8 * TILE_BYTES;
    inputs.convolve(channel, before + first, [&](int t, float (&y)[8]) { *(uint4*)(values + place(first + t, sub % 8)) = packed(y); });
  }
  show_writes();
  __syncthreads();
  if (threadIdx.x == 0) send(unit, shared_address(shared), UNIT_BYTES);

  if (before == 0 && WIDTH > 1 && threadIdx.x < (2 + GROUP) * (D / 8)) {  // the row's last inputs become its tail
    const int vector = threadIdx.x / (D / 8), in_vector = threadIdx.x % (D / 8) * 8;
    const int channel = (vector < 2 ? vector * KEY_HEADS + key_head : 2 * KEY_HEADS + first_head + vector - 2) * D + in_vector;
    uint4 kept[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH - 1; w++) kept[w] = inputs.load(channel, tokens - (WIDTH - 1) + w);
#pragma unroll
    for (int w = 0; w < WIDTH - 1; w++) *(uint4*)(tail + w * CHANNELS + channel) = kept[w];
  }
  for (int i = threadIdx.x; i < GROUP * SIZE; i += 256) {
    float* const factors = (float*)(records + i / SIZE * HEAD_BYTES + 4 * TILE_BYTES);
    factors[i % SIZE] = exponential(decays[i]), factors[SIZE + i % SIZE] = exponential(decays[i / SIZE * SIZE + SIZE - 1] - decays[i]);
  }
  {  // 16 rows by 32 columns of K K^T and Q K^T, in every warp
    const int rows = warp / 2, columns = warp % 2;
    float kk[4][4] = {}, qk[4][4] = {};
    if (rows >= 2 * columns)
#pragma unroll
      for (int k = 0; k < D / 16; k++) {
        char* const tile = shared + k / 4 * 2 * TILE_BYTES;
        const int piece = 2 * k % 8;
        u32 key[4], query[4];
        load_matrices(key, tile + place(16 * rows + lane % 16, piece + lane / 16));
        load_matrices(query, tile + TILE_BYTES + place(16 * rows + lane % 16, piece + lane / 16));
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
          u32 b[4];
          load_matrices(b, tile + place(32 * columns + 8 * n + lane % 8 + lane / 16 * 8, piece + lane / 8 % 2));
          mma(kk[n], key, b[0], b[1]), mma(kk[n + 1], key, b[2], b[3]);
          mma(qk[n], query, b[0], b[1]), mma(qk[n + 1], query, b[2], b[3]);
        }
      }
#pragma unroll
    for (int r = 0; r < GROUP; r++) {
      char *const m = shared + M_AT + r * 2 * TILE_BYTES, *const p = m + TILE_BYTES, *const l = shared + L_AT + r * TILE_BYTES;
      const float* const decay = decays + r * SIZE;
#pragma unroll
      for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          const int i = 16 * rows + g + 4 * e, j = 32 * columns + 8 * n + 2 * c, at = place(i, j / 8) + 4 * c;
          const float near = j <= i ? exponential(fminf(decay[i] - decay[j], 0)) : 0;
          const float far = j + 1 <= i ? exponential(fminf(decay[i] - decay[j + 1], 0)) : 0;
          *(u32*)(p + at) = pack_half(qk[n][e] * near, qk[n][e + 1] * far);
          *(u32*)(l + at) = pack_half(j < i ? kk[n][e] * near : 0, j + 1 < i ? kk[n][e + 1] * far : 0);
          if (j / 16 > i / 16) *(u32*)(m + at) = 0;
        }
    }
  }
  __syncthreads();
  for (int task = 2 * warp + half; task < GROUP * 4; task += 16) {  // a lane has a column of a block
    const int r = task / 4, block = task % 4;
    char *const m = shared + M_AT + r * 2 * TILE_BYTES, *const l = shared + L_AT + r * TILE_BYTES;
    const float* const beta = betas + r * SIZE + 16 * block;
    float column[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
      const uint4 low = *(const uint4*)(l + place(16 * block + i, 2 * block)), high = *(const uint4*)(l + place(16 * block + i, 2 * block + 1));
      const u32 words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      float sums[4] = {i == sub ? 1.0f : 0.0f, 0, 0, 0};
#pragma unroll
      for (int k = 0; k < i; k++) sums[k % 4] -= (k % 2 ? high_half(words[k / 2]) : low_half(words[k / 2])) * column[k];
      column[i] = beta[i] * ((sums[0] + sums[1]) + (sums[2] + sums[3]));
      *(u16*)(m + place(16 * block + i, 2 * block + sub / 8) + sub % 8 * 2) = (u16)pack_half(column[i], 0);
    }
  }
  __syncthreads();
  for (int task = warp; task < GROUP * 2; task += 8) {
    const Blocks m = {shared + M_AT + task / 2 * 2 * TILE_BYTES, lane}, l = {shared + L_AT + task / 2 * TILE_BYTES, lane};
    const int near = task % 2 * 2, far = near + 1;
    u32 a[4];
    float product[2][4] = {}, sums[2][4] = {};
    m.left(a, far, far), l.add_product(product, a, far, near);
    negated(a, product), m.add_product(sums, a, near, near);
    m.store(sums, far, near);
  }
  __syncthreads();
  for (int task = warp; task < GROUP * 2; task += 8) {
    const Blocks m = {shared + M_AT + task / 2 * 2 * TILE_BYTES, lane}, l = {shared + L_AT + task / 2 * TILE_BYTES, lane};
    const int far = 2 + task % 2;
    u32 a[4], products[2][4];
    float product[2][2][4] = {}, sums[2][2][4] = {};
    for (int k = 2; k <= far; k++) {
      m.left(a, far, k);
      l.add_product(product[0], a, k, 0), l.add_product(product[1], a, k, 1);
    }
    negated(products[0], product[0]), negated(products[1], product[1]);
    m.add_product(sums[0], products[0], 0, 0), m.add_product(sums[0], products[1], 1, 0), m.add_product(sums[1], products[1], 1, 1);
    m.store(sums[0], far, 0), m.store(sums[1], far, 1);
  }
  show_writes();
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int r = 0; r < GROUP; r++) send(records + r * HEAD_BYTES + 2 * TILE_BYTES, shared_address(shared + M_AT + r * 2 * TILE_BYTES), 2 * TILE_BYTES);
    await_sent();
  }
}
