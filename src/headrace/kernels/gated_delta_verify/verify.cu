// Convolution, gated delta rule and gated norm of a row's certain tokens and drafts: a block for GROUP value heads of one row.
//
// The block makes the triangular matrices of the chunk form (gated_delta_rule/triton) of its heads side by side. Then each warp
// goes from head to head by itself: 16 rows of X belong to it from load to store, as the left operand of every product. Blocks
// of one key head all read its tails, so the last of them to have read them moves them on.
//
// Other macros: TOKENS (of a row at most, 8 or 16), ARRIVALS (rows times key heads, at most), SHARED_BYTES. One launch at a time
// on a device may count in `arrivals`.

#define HALVES (TOKENS / 8)            // eights of tokens
#define SQUARE (TOKENS > 8 ? 24 : 8)   // pitch of the shared TOKENS x TOKENS matrices
#define BLOCKS (RATIO / GROUP)         // of a key head

__device__ unsigned arrivals[BLOCKS > 1 ? ARRIVALS : 1];  // blocks of each row's key heads; back at zero after every launch

struct __align__(16) Shared {
  u16 vectors[PARTS][TOKENS][PITCH];       // unit queries, unit keys, both in fragment order; values, later the drafts' deltas
  Drafts pending;
  union {
    u16 window[PARTS][TOKENS + BEFORE][DIM];  // inputs of the convolution
    float outputs[GROUP][TOKENS][DIM];
  };
  union {
    u16 taps[PARTS][WIDTH][DIM];
    struct {
      float system[GROUP][TOKENS][TOKENS];   // A, transposed
      float inverse[GROUP][TOKENS][8];       // of its two diagonal blocks
    };
  };
  u16 solve[GROUP][TOKENS][SQUARE], within[GROUP][TOKENS][SQUARE];
  float sums[GROUP][TOKENS], past[GROUP][TOKENS];  // decay summed within the certain tokens or the drafts; its exponential
  float beta[GROUP][TOKENS];
  float norm[DIM];
  int first_token, new_first;  // for the end, to which a register each would be long to keep
};
static_assert(sizeof(Shared) == SHARED_BYTES, "what the host asks for");
static_assert(RATIO % GROUP == 0 && 2 * GROUP <= (EXTRA ? EXTRA : WARPS) && WIDTH <= 5, "warps for all that a block has to do");

// Where a row is looked up: what other kernels write, and how much there is of it.
struct Rows {
  const long long* slots;
  const int *offsets, *certain, *pending, *parity;
  int slot_count, token_count;

  __device__ int within_slots(long long slot) const { return (int)min(max(slot, 0LL), slot_count - 1LL); }
  __device__ int slot() const { return within_slots(load_now(slots + blockIdx.y)); }
};

__device__ __forceinline__ int within(int x, int most) { return min(max(x, 0), most); }

// What is said of a row; its drafts and half, of the slot that it is likely to have.
struct Saying {
  long long slot;
  int begin, end, certain, pending, parity;
  __device__ Saying(const Rows& of, int likely)
      : slot(load_now(of.slots + blockIdx.y)), begin(load_now(of.offsets + blockIdx.y)), end(load_now(of.offsets + blockIdx.y + 1)),
        certain(load_now(of.certain + blockIdx.y)), pending(load_now(of.pending + likely)), parity(load_now(of.parity + likely)) {}
};

// The row of a block. Looked up while the kernels before still run it may be any, though none beyond memory.
struct Row {
  int slot, first, count, sure, waiting, half;  // waiting: drafts; half: of the ring, that they lie in

  __device__ Row(const Rows& of) : Row(of, Saying(of, of.slot())) {}
  __device__ Row(const Rows& of, const Saying& said) {
    slot = of.within_slots(said.slot), waiting = within(said.pending, DEPTH), half = said.parity & 1;
    first = within(said.begin, of.token_count);
    count = within(said.end - said.begin, min(of.token_count - first, TOKENS)), sure = within(said.certain, count);
  }
  __device__ bool operator!=(const Row& o) const {
    return slot != o.slot || first != o.first || count != o.count || sure != o.sure || waiting != o.waiting || half != o.half;
  }
};

// A thread's place in its warp, and the 16 bytes that it has of one of the heads that a block copies at a time.
struct Thread {
  int warp, lane, line, at;
  __device__ Thread()
      : warp(threadIdx.x / 32), lane(threadIdx.x % 32), line(threadIdx.x / VECTORS), at(threadIdx.x % VECTORS * 8) {}
};

__device__ __forceinline__ float sigmoid(float x) { return reciprocal(1.0f + exponential(-x)); }

__device__ __forceinline__ float log_decay(float x, float rate) {  // -rate softplus(x)
  const float e = exponential(fminf(x, 20.0f));
  const float soft = e < 1e-3f ? e - 0.5f * e * e : __logf(1.0f + e);  // log(1 + e) loses a small e's digits
  return -rate * (x > 20.0f ? x : soft);
}

__device__ __forceinline__ void fetch_weights(Shared& s, const u16* conv, const float* norm, const Heads& heads, const Thread& me) {
  for (int line = me.line; line < PARTS * WIDTH; line += LINES)
    copy_async<16>(&s.taps[0][line][me.at], conv + line % WIDTH * CHANNELS + (heads.channel(line / WIDTH) + me.at));
  if (threadIdx.x < DIM / 4) copy_async<16>(&s.norm[4 * threadIdx.x], norm + 4 * threadIdx.x);
}

__device__ __forceinline__ void fetch_tokens(Shared& s, const u16* from, int stride, int count, const Thread& me) {
  constexpr int together = LINES / PARTS;  // tokens at a time
  if (me.line >= together * PARTS) return;
  u16* to = &s.window[me.line % PARTS][BEFORE][me.at];
  to += me.line / PARTS * DIM;
#pragma unroll 1
  for (int t = me.line / PARTS; t < count; t += together, to += together * DIM, from += together * stride) copy_async<16>(to, from);
}

// Where a thread's share of the inputs before a row lies: pending drafts', and the tail's before those.
struct Past {
  static constexpr int rounds = (PARTS * BEFORE + LINES - 1) / LINES;
  const u16* from[rounds + 1];
  __device__ Past(const u16* tails, const u16* ring_inputs, const Heads& heads, const Row& row, const Thread& me, int old_first) {
#pragma unroll
    for (int i = 0; i < rounds; i++) {
      const int line = me.line + i * LINES, part = line / (BEFORE ? BEFORE : 1), draft = row.waiting - BEFORE + line - part * BEFORE;
      from[i] = (draft >= 0 ? ring_inputs + (long long)(old_first + draft) * CHANNELS
                            : tails + (long long)(row.slot * BEFORE + draft + BEFORE) * CHANNELS) + (heads.channel(part) + me.at);
    }
  }
  __device__ void expect(const Thread& me) const {
#pragma unroll
    for (int i = 0; i < rounds; i++)
      if (me.line + i * LINES < PARTS * BEFORE) prefetch(from[i]);
  }
  __device__ void copy(Shared& s, const Thread& me) const {
#pragma unroll
    for (int i = 0; i < rounds; i++) {
      const int line = me.line + i * LINES, part = line / (BEFORE ? BEFORE : 1);
      if (line < PARTS * BEFORE) copy_async<16>(&s.window[part][line - part * BEFORE][me.at], from[i]);
    }
  }
};

// What a thread reads of a row: its state's rows, its first token of one part, its token's decay and learning rate, and the rest.
struct Share {
  Element* state;
  const u16 *tokens, *gates;
  Past past;
  Drafts::Source drafts;
  __device__ void make() { made(state), made(tokens), made(gates), made(past.from[0]), made(drafts.key), made(drafts.delta), made(drafts.decay); }
};

// silu of the convolution at a token of one part, a lane's four channels.
__device__ __forceinline__ void convolve(const Shared& s, int part, int token, int lane, float (&y)[4]) {
  y[0] = y[1] = y[2] = y[3] = 0.0f;
#pragma unroll
  for (int w = 0; w < WIDTH; w++) {
    const uint2 x = *(const uint2*)&s.window[part][token + w][4 * lane];
    const uint2 tap = *(const uint2*)&s.taps[part][w][4 * lane];
    y[0] += low_number(x.x) * low_number(tap.x), y[1] += high_number(x.x) * high_number(tap.x);
    y[2] += low_number(x.y) * low_number(tap.y), y[3] += high_number(x.y) * high_number(tap.y);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) y[i] *= sigmoid(y[i]);
}

__device__ __forceinline__ float square_sum(const float (&y)[4]) { return y[0] * y[0] + y[1] * y[1] + y[2] * y[2] + y[3] * y[3]; }
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int other = 16; other; other /= 2) x += __shfl_xor_sync(~0u, x, other);
  return x;
}
__device__ __forceinline__ uint2 pack_halves(const float (&y)[4], float factor) {
  return make_uint2(pack_half(y[0] * factor, y[1] * factor), pack_half(y[2] * factor, y[3] * factor));
}

// q, k and v of all tokens, a warp for one at a time. Keeps the drafts' keys; keys of what lies behind the row are zeros.
__device__ __forceinline__ void make_vectors(
    Shared& s, const Heads& heads, const Row& row, const Thread& me, u16* ring_keys, int new_first) {
#pragma unroll 1
  for (int t = me.warp; t < row.count; t += WARPS) {
    float y[PARTS][4];
#pragma unroll
    for (int part = 0; part < PARTS; part++) convolve(s, part, t, me.lane, y[part]);
    const int place = place_of_pair(2 * me.lane);
    const float query_factor = rsqrtf(warp_sum(square_sum(y[0])) + 1e-6f) * rsqrtf((float)DIM);
    const uint2 query = pack_halves(y[0], query_factor), key = pack_halves(y[1], rsqrtf(warp_sum(square_sum(y[1])) + 1e-6f));
    *(u32*)&s.vectors[0][t][place] = query.x, *(u32*)&s.vectors[0][t][place + 8] = query.y;
    *(u32*)&s.vectors[1][t][place] = key.x, *(u32*)&s.vectors[1][t][place + 8] = key.y;
    if (t >= row.sure && heads.is_first())
      *(uint2*)(ring_keys + (long long)(new_first + t - row.sure) * (KEY_HEADS * DIM) + (heads.key * DIM + 4 * me.lane)) = key;
#pragma unroll
    for (int part = 2; part < PARTS; part++) *(uint2*)&s.vectors[part][t][4 * me.lane] = pack_halves(y[part], 1.0f);
  }
  if (me.line >= row.count && me.line < TOKENS) *(uint4*)&s.vectors[1][me.line][me.at] = make_uint4(0, 0, 0, 0);
}

// Decays summed within the certain tokens and within the drafts, and learning rates, of head h: lane t for token t.
__device__ __forceinline__ void make_gates(
    Shared& s, const Heads& heads, const Row& row, int h, int t, float a, float b, float rate, float* ring_decays, int new_first) {
  float sum = t < row.count ? log_decay(a, rate) : 0.0f;
  const int block = t >= row.sure ? row.sure : 0;
#pragma unroll
  for (int back = 1; back < TOKENS; back *= 2) {
    const float before = __shfl_up_sync(~0u, sum, back);
    if (t - back >= block) sum += before;
  }
  if (t < TOKENS) s.sums[h][t] = sum, s.past[h][t] = exponential(sum), s.beta[h][t] = t < row.count ? sigmoid(b) : 0.0f;
  if (t >= row.sure && t < row.count) ring_decays[(long long)(new_first + t - row.sure) * VALUE_HEADS + (heads.value + h)] = sum;
}

// Eight rows by eight columns of left keys^T * D from i0, j0 on, for i >= j of one block (certain tokens, or drafts), else 0:
// row g, columns 2c and 2c + 1.
__device__ __forceinline__ float2 decayed_products(
    const Shared& s, const Row& row, int h, const u16 (*left)[PITCH], int i0, int j0, int lane) {
  float even[4] = {}, odd[4] = {};
#pragma unroll
  for (int step = 0; step < DIM / 16; step += 2) {
    u32 l[4], k[4];
    load_matrices(l, &left[i0 + lane % 8][16 * step + lane / 8 * 8]);
    load_matrices(k, &s.vectors[1][j0 + lane % 8][16 * step + lane / 8 * 8]);
    const u32 first[4] = {l[0], 0, l[1], 0}, second[4] = {l[2], 0, l[3], 0};
    mma(even, first, k[0], k[1]);
    mma(odd, second, k[2], k[3]);
  }
  const int i = i0 + lane / 4, j = j0 + lane % 4 * 2;
  const float sum = s.sums[h][i];
  const float2 sums = *(const float2*)&s.sums[h][j];
  const bool draft = i >= row.sure;
  const float x = exponential(fminf(sum - sums.x, 0.0f)), y = exponential(fminf(sum - sums.y, 0.0f));
  return {i >= j && draft == (j >= row.sure) ? (even[0] + odd[0]) * x : 0.0f,
          i > j && draft == (j + 1 >= row.sure) ? (even[1] + odd[1]) * y : 0.0f};
}

__device__ __forceinline__ void make_within(Shared& s, const Row& row, int h, int lane) {
  if (TOKENS > 8) *(u32*)&s.within[h][lane / 4][lane % 4 * 2 + 8] = 0;
#pragma unroll 1
  for (int i0 = 0; i0 < row.count; i0 += 8)
#pragma unroll 1
    for (int j0 = 0; j0 <= i0; j0 += 8) {
      const float2 x = decayed_products(s, row, h, s.vectors[0], i0, j0, lane);
      *(u32*)&s.within[h][i0 + lane / 4][j0 + lane % 4 * 2] = pack_half(x.x, x.y);
    }
}

// Column j of the inverse N of a diagonal block of eight rows of I + A, by forward substitution; and of N diag(beta).
__device__ __forceinline__ void invert_block(Shared& s, int h, int first, int j, bool wide) {
  float column[8];
#pragma unroll
  for (int i = 0; i < 8; i++) column[i] = i == j ? 1.0f : 0.0f;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const float4 low = *(const float4*)&s.system[h][first + i][first], high = *(const float4*)&s.system[h][first + i][first + 4];
    const float below[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int k = i + 1; k < 8; k++) column[k] -= below[k] * column[i];
  }
  const float beta = s.beta[h][first + j];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    if (wide) s.inverse[h][first + i][j] = column[i];
    s.solve[h][first + i][first + j] = (u16)pack_half(column[i] * beta, 0.0f);
  }
}

// M = (I + A)^-1 diag(beta) with A = strictly lower (beta K K^T * D). What lies below the first diagonal block of the inverse
// is -N2 A21 N1 with the blocks' inverses.
__device__ __forceinline__ void make_solve(Shared& s, const Row& row, int h, int lane) {
  const int i = lane / 4, j = lane % 4 * 2;
  float(&system)[TOKENS][TOKENS] = s.system[h];
  if (TOKENS > 8) *(u32*)&s.solve[h][i][j + 8] = 0;
#pragma unroll 1
  for (int i0 = 0; i0 < row.count; i0 += 8)
#pragma unroll 1
    for (int j0 = 0; j0 <= i0; j0 += 8) {
      const float2 x = decayed_products(s, row, h, s.vectors[1], i0, j0, lane);
      system[j0 + j][i0 + i] = s.beta[h][i0 + i] * x.x, system[j0 + j + 1][i0 + i] = s.beta[h][i0 + i] * x.y;
    }
  __syncwarp();
  if (lane < 8 || lane < TOKENS && row.count > 8) invert_block(s, h, lane / 8 * 8, lane % 8, row.count > 8);
  if (TOKENS <= 8 || row.count <= 8) return;
  const float(&inverse)[TOKENS][8] = s.inverse[h];
  __syncwarp();
  float inner[2] = {0.0f, 0.0f}, y[2] = {0.0f, 0.0f};
#pragma unroll
  for (int k = 0; k < 8; k++) inner[0] += system[k][i + 8] * inverse[k][j], inner[1] += system[k][i + 8] * inverse[k][j + 1];
  system[i + 8][j] = inner[0], system[i + 8][j + 1] = inner[1];  // where A has nothing
  __syncwarp();
#pragma unroll
  for (int k = 0; k < 8; k++)
    y[0] -= inverse[i + 8][k] * system[k + 8][j], y[1] -= inverse[i + 8][k] * system[k + 8][j + 1];
  *(u32*)&s.solve[h][i + 8][j] = pack_half(y[0] * s.beta[h][j], y[1] * s.beta[h][j + 1]);
}

// Rows of the window from `first` on to memory, of the parts from first_part to end_part: by `lines` lines of threads.
__device__ __forceinline__ void keep_rows(
    const Shared& s, const Heads& heads, const Thread& me, int first_part, int end_part, int first, int count, int line, int lines,
    u16* to) {
#pragma unroll 1
  for (; line < count; line += lines) {
#pragma unroll
    for (int part = 0; part < PARTS; part++)
      if (part >= first_part && part < end_part)
        *(uint4*)(to + line * CHANNELS + (heads.channel(part) + me.at)) = *(const uint4*)&s.window[part][first + line][me.at];
  }
}

// [16 values, 8 tokens] each: X K^T and X Q^T of eight rows of unit vectors.
__device__ __forceinline__ void multiply(
    const State& x, const u16 (*keys)[PITCH], const u16 (*queries)[PITCH], int lane, float (&known)[4], float (&seen)[4]) {
#pragma unroll
  for (int e = 0; e < 4; e++) known[e] = seen[e] = 0.0f;
  float more_known[4] = {}, more_seen[4] = {};
#pragma unroll
  for (int step = 0; step < DIM / 16; step += 2) {
    u32 a[4], k[4], q[4];
    load_matrices(k, &keys[lane % 8][16 * step + lane / 8 * 8]);
    load_matrices(q, &queries[lane % 8][16 * step + lane / 8 * 8]);
    x.operand(step, a);
    mma(known, a, k[0], k[1]);
    mma(seen, a, q[0], q[1]);
    x.operand(step + 1, a);
    mma(more_known, a, k[2], k[3]);
    mma(more_seen, a, q[2], q[3]);
  }
#pragma unroll
  for (int e = 0; e < 4; e++) known[e] += more_known[e], seen[e] += more_seen[e];
}

// y [16, TOKENS] += a [16, TOKENS] m^T, of the halves that have tokens.
__device__ __forceinline__ void multiply_square(
    const u32 (&a)[2], const u16 (*m)[SQUARE], const Row&, int lane, float (&y)[1][4]) {
  mma(y[0], a, *(const u32*)&m[lane / 4][lane % 4 * 2]);
}
__device__ __forceinline__ void multiply_square(
    const u32 (&a)[4], const u16 (*m)[SQUARE], const Row& row, int lane, float (&y)[2][4]) {
  u32 b[4];
  load_matrices(b, &m[lane % 8 + lane / 16 * 8][lane / 8 % 2 * 8]);
  mma(y[0], a, b[0], b[1]);
  if (row.count > 8) mma(y[1], a, b[2], b[3]);
}

// What a warp knows of the tokens of head h, in halves of eight: lane 4g + c has values g and g + 8 of tokens 2c and 2c + 1.
struct Chunk {
  const int h, warp, lane;
  u32 rest[2 * HALVES];  // V - e^c K S of the tokens that were looked at, and d of all that were run; as mma's left operand
  u32 d[2 * HALVES];
  float o[HALVES][4];

  __device__ Chunk(int h, const Thread& me) : h(h), warp(me.warp), lane(me.lane), rest{}, d{}, o{} {}

  __device__ int token(int half, int e) const { return 8 * half + lane % 4 * 2 + e % 2; }

  // Tokens from `begin` to `end`: their rest, with nothing of others, and X Q^T decayed.
  __device__ void look(const State& x, const Shared& s, int begin, int end) {
    u32 v[2 * HALVES];
    load_transposed(v, &s.vectors[2 + h][lane % 8 + (HALVES > 1 ? lane / 16 * 8 : 0)][16 * warp + lane / 8 % 2 * 8]);
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
      rest[2 * half] = rest[2 * half + 1] = 0;
      if (begin >= 8 * half + 8 || end <= 8 * half) continue;
      float known[4], seen[4], left[4];
      multiply(x, s.vectors[1] + 8 * half, s.vectors[0] + 8 * half, lane, known, seen);
      const float2 past = *(const float2*)&s.past[h][token(half, 0)];
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const bool there = token(half, e) >= begin && token(half, e) < end;
        const float value = e % 2 ? high_half(v[2 * half + e / 2]) : low_half(v[2 * half + e / 2]);
        const float decay = e % 2 ? past.y : past.x;
        left[e] = there ? value - decay * known[e] : 0.0f;
        o[half][e] = there ? decay * seen[e] : o[half][e];
      }
      rest[2 * half] = pack_half(left[0], left[1]), rest[2 * half + 1] = pack_half(left[2], left[3]);
    }
  }

  // M rest: nothing of tokens that were not looked at, since M couples neither block with the other.
  __device__ void solve(const Shared& s, const Row& row, float (&y)[HALVES][4]) const {
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll
      for (int e = 0; e < 4; e++) y[half][e] = 0.0f;
    multiply_square(rest, s.solve[h], row, lane, y);
  }

  __device__ void run_certain(State& x, const Shared& s, const Row& row) {
    float y[HALVES][4];
    solve(s, row, y);
    const float end = s.sums[h][row.sure - 1];
    u32 weighted[2 * HALVES];
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
      const float2 sum = *(const float2*)&s.sums[h][token(half, 0)];
      const float low = exponential(fminf(end - sum.x, 0.0f)), high = exponential(fminf(end - sum.y, 0.0f));
#pragma unroll
      for (int i = 0; i < 2; i++) {
        d[2 * half + i] = pack_half(y[half][2 * i], y[half][2 * i + 1]);
        weighted[2 * half + i] = pack_half(y[half][2 * i] * low, y[half][2 * i + 1] * high);
      }
    }
    x.add(weighted, s.vectors[1], exponential(end), lane);
  }

  // Leaves the drafts' deltas where their values were.
  __device__ void run_drafts(const State& x, Shared& s, const Row& row) {
    look(x, s, row.sure, row.count);
    float y[HALVES][4];
    solve(s, row, y);
    __syncwarp();  // all lanes have their values
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const u32 pair = pack_half(y[half][2 * i], y[half][2 * i + 1]);
        u16* at = &s.vectors[2 + h][token(half, 0)][16 * warp + lane / 4 + 8 * i];
        at[0] = (u16)pair, at[PITCH] = (u16)(pair >> 16);
        d[2 * half + i] |= pair;  // certain tokens are zero here, and drafts there
      }
  }

  // O of all tokens to s.outputs.
  __device__ void finish(Shared& s, const Row& row) {
    multiply_square(d, s.within[h], row, lane, o);
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
      if (row.count <= 8 * half) break;
#pragma unroll
      for (int e = 0; e < 4; e++) s.outputs[h][token(half, e)][16 * warp + lane / 4 + e / 2 * 8] = o[half][e];
    }
  }
};

// A lane's gates of the outputs that its warp norms: token warp + i WARPS of each head.
struct Gates {
  uint2 of[HALVES][GROUP];
  __device__ void load(const u16* qkvz, int stride, int first, int count, int head, const Thread& me) {
    const u16* from = qkvz + (long long)(first + me.warp) * stride + (CHANNELS + head * DIM + 4 * me.lane);
#pragma unroll
    for (int i = 0; i < HALVES; i++)
#pragma unroll
      for (int h = 0; h < GROUP; h++)
        if (me.warp + i * WARPS < count) of[i][h] = load_pair_early(from + (long long)(i * WARPS) * stride + h * DIM);
  }
};

// A lane's four values of a token of head h.
__device__ __forceinline__ uint2 normed(const Shared& s, int h, int t, int lane, uint2 gate, float eps) {
  const float4 v = *(const float4*)&s.outputs[h][t][4 * lane], scale = *(const float4*)&s.norm[4 * lane];
  const float o[4] = {v.x, v.y, v.z, v.w};
  const float factor = rsqrtf(warp_sum(square_sum(o)) / DIM + eps);
  const float a = low_number(gate.x), b = high_number(gate.x), c = low_number(gate.y), d = high_number(gate.y);
  return make_uint2(pack_numbers(o[0] * factor * scale.x * a * sigmoid(a), o[1] * factor * scale.y * b * sigmoid(b)),
                    pack_numbers(o[2] * factor * scale.z * c * sigmoid(c), o[3] * factor * scale.w * d * sigmoid(d)));
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) verify(
    const u16* qkvz, const u16* ab, const u16* __restrict__ conv, const float* __restrict__ a_log,
    const float* __restrict__ dt_bias, const float* __restrict__ norm, u16* tails, void* states, const long long* slots,
    const int* offsets, const int* certain, const int* pending, const int* parity, u16* ring_keys, u16* ring_deltas,
    float* ring_decays, u16* ring_inputs, u16* out, int slot_count, int token_count, int x_stride, int ab_stride, float eps) {
  extern __shared__ uint4 memory[];
  Shared& s = *(Shared*)memory;
  const Heads heads;
  const Thread me;
  fetch_weights(s, conv, norm, heads, me);
  const int gate_head = WARPS - 1 - me.warp;
  const bool has_gates = gate_head < GROUP;
  const float rate = has_gates ? a_log[heads.value + gate_head] : 0.0f, bias = has_gates ? dt_bias[heads.value + gate_head] : 0.0f;
  const Rows looked_up_in{slots, offsets, certain, pending, parity, slot_count, token_count};
  const auto share_of = [&](const Row& row) {
    const int old_first = Halves(row.slot, row.half).old_first;
    return Share{
        lane_rows(states, row.slot, heads.value),
        qkvz + (long long)(row.first + me.line / PARTS) * x_stride + (heads.channel(me.line % PARTS) + me.at),
        ab + (long long)(row.first + me.lane) * ab_stride + (heads.value + gate_head),
        Past(tails, ring_inputs, heads, row, me, old_first),
        Drafts::Source(ring_keys, ring_deltas, ring_decays, heads, old_first, row.waiting),
    };
  };
  Row row(looked_up_in);
  Share share = share_of(row);
  expect(states, row.slot, heads.value);
  if (EXTRA) share.past.expect(me), share.drafts.expect(), share.make();
  await_previous_kernel();
  let_next_kernel_start();  // no sooner: kernels that wait in a long row take places from blocks that could run

  Incoming rows;
  Gates output_gates;
  u16 a = 0, b = 0;  // as they are, since it would be waited for them at once
  const auto take = [&]() {
    if (has_gates && me.lane < row.count) a = load_number_early(share.gates), b = load_number_early(share.gates + VALUE_HEADS);
    fetch_tokens(s, share.tokens, x_stride, row.count, me);
    share.past.copy(s, me);
    s.pending.copy(share.drafts);
    if (me.warp < STATE_WARPS) rows.load(share.state);  // behind what is needed sooner
    if (EXTRA) output_gates.load(qkvz, x_stride, row.first, row.count, heads.value, me);
  };
  const Saying said(looked_up_in, row.slot);
  take();
  if (row != Row(looked_up_in, said)) {  // it has changed since it was looked up
    await_copies();
    row = Row(looked_up_in);
    share = share_of(row);
    take();
  }
  Element* state = share.state;
  const Halves ring(row.slot, row.half);
  if (has_gates)
    make_gates(s, heads, row, gate_head, me.lane, low_number(a) + bias, low_number(b), exponential(rate), ring_decays, ring.new_first);
  await_copies();
  __syncthreads();

  // The last warp counts the block among those of its key head that have the tails in shared memory. Where there are extra warps
  // it also keeps rows of the window, and the others make the triangular matrices.
  constexpr int keeper = WARPS - 1, first_solver = EXTRA ? STATE_WARPS : 0, solvers = 2 * GROUP;
  bool is_last = BLOCKS == 1;
  if (BLOCKS > 1 && me.warp == keeper && me.lane == 0)
    is_last = atomicInc(arrivals + blockIdx.y * KEY_HEADS + heads.key, BLOCKS - 1) == BLOCKS - 1;
  make_vectors(s, heads, row, me, ring_keys, ring.new_first);
  if (threadIdx.x == 0) s.first_token = row.first, s.new_first = ring.new_first;
  __syncthreads();

  const int solver = me.warp - first_solver;
  if (solver >= 0 && solver < GROUP) make_solve(s, row, solver, me.lane);
  else if (solver >= GROUP && solver < solvers) make_within(s, row, solver - GROUP, me.lane);
  constexpr int free_warps = WARPS - first_solver - solvers, keepers = free_warps > 0 ? free_warps : WARPS;
  if (me.warp >= WARPS - keepers) {  // the drafts' inputs to the ring's other half, and the tails behind the certain tokens
    const int line = me.line - 2 * (WARPS - keepers), lines = 2 * keepers;
    u16* tail = tails + (long long)row.slot * (BEFORE * CHANNELS);
    keep_rows(s, heads, me, heads.is_first() ? 0 : 2, PARTS, BEFORE + row.sure, row.count - row.sure, line, lines,
              ring_inputs + (long long)ring.new_first * CHANNELS);
    keep_rows(s, heads, me, 2, PARTS, row.sure, BEFORE, lines - 1 - line, lines, tail);
    if (me.warp == keeper && __shfl_sync(~0u, is_last, 0)) keep_rows(s, heads, me, 0, 2, row.sure, BEFORE, me.line % 2, 2, tail);
  }

  const u32 zero = (u32)row.count >> 31;
  if (EXTRA && me.warp >= STATE_WARPS) __syncthreads();  // with the others in their first head
  else {
    State x(rows, zero);
#pragma unroll 1
    for (int h = 0; h < GROUP; h++, state += DIM * DIM) {
      if (h + 1 < GROUP) expect(states, row.slot, heads.value + h + 1);
      Chunk chunk(h, me);
      s.pending.fold(x, h, row.waiting, me.warp, me.lane);
      if (row.sure > 0) chunk.look(x, s, 0, row.sure);
      if (h == 0) __syncthreads();  // the triangular matrices are there, and all of the window was read
      if (row.sure > 0) chunk.run_certain(x, s, row);
      x.store(state, zero);
      if (row.sure < row.count) chunk.run_drafts(x, s, row);
      chunk.finish(s, row);
      if (h + 1 == GROUP) break;
      rows.load(state + DIM * DIM);
      x = State(rows, zero);
    }
  }
  if (!EXTRA) output_gates.load(qkvz, x_stride, s.first_token, row.count, heads.value, me);
  __syncthreads();

  const int values = heads.value * DIM + 4 * me.lane;
#pragma unroll
  for (int i = 0; i < HALVES; i++)
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
      const int t = me.warp + i * WARPS;
      if (t >= row.count) break;
      *(uint2*)(out + (long long)(s.first_token + t) * (VALUE_HEADS * DIM) + (values + h * DIM)) =
          normed(s, h, t, me.lane, output_gates.of[i][h], eps);
      if (t >= row.sure)
        *(uint2*)(ring_deltas + (long long)(s.new_first + t - row.sure) * (VALUE_HEADS * DIM) + (values + h * DIM)) =
            *(const uint2*)&s.vectors[2 + h][t][4 * me.lane];
    }
}
