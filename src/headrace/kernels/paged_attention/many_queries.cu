// Attention of one item for up to 8 NT queries of a key head (tokens x GROUP): the eight warps of a block share a tile of KEYS keys. For the
// logits they split its keys and the queries, for the sums the dimensions; the probabilities go through shared memory. The ring has SLOTS
// tiles of keys or values. All warps know one largest logit of each query. Grid [KV, items, blocks of 8 NT queries]. Macros: NT (2, 4 or
// 6), KEYS, SPLIT (the queries' parts, for the logits), SLOTS, RESIDENT (blocks of a processor).
#define THREADS 256
#define QUERIES (8 * NT)
#define SLOT (KEYS * ROW + (EIGHT_BITS ? 8 * KEYS : 0))  // bytes; behind the codes of the keys 4 bytes for each key's and value's scale
#define KEY_GROUPS (KEYS / 16)                           // steps of 16 keys, and parts of the keys, for the logits
#define OWN (NT / SPLIT)                                 // eights of queries of a warp, for the logits
#define WEIGHTS_ROW (QUERIES + 8)                        // numbers from one key's probabilities to the next: no bank twice
#define AT_ONCE (THREADS / PIECES)                        // keys that the threads copy at once: 8, 16 or 32
#define WARP_TILES (D / 128)                             // of 16 dimensions, of a warp's sums

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) many_queries(
    const u16* __restrict__ q, const char* __restrict__ keys, const char* __restrict__ values, const u16* __restrict__ key_scales,
    const u16* __restrict__ value_scales, const u16* __restrict__ gate, u16* __restrict__ out, float* __restrict__ partial,
    float* __restrict__ tops, float* __restrict__ totals, const long long* __restrict__ page_table, const int* __restrict__ items,
    float scale, int window, long long table_stride, long long gate_token_stride, long long gate_head_stride, int most_queries) {
  extern __shared__ __align__(128) char ring[];
  __shared__ float shared_tops[2][QUERIES], found_tops[KEY_GROUPS][QUERIES], found_totals[KEY_GROUPS][QUERIES];
  uint4* shared_queries = (uint4*)(ring + SLOTS * SLOT);                 // [STEPS / 2][NT][32]: B operands of two steps
  u16* weights = (u16*)(shared_queries + STEPS / 2 * NT * 32);           // [KEYS][WEIGHTS_ROW]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4, head = blockIdx.x;
  const int key_group = warp % KEY_GROUPS, row = 16 * key_group + g, first_own = warp / KEY_GROUPS * OWN, first_query = blockIdx.z * QUERIES;
  const bool has_logits = KEY_GROUPS * SPLIT == 8 || warp < KEY_GROUPS * SPLIT;

  let_next_kernel_start();
  await_previous_kernel();
  const Item item = load_item(items);
  if (item.row < 0) return;
  const int queries = item.tokens * GROUP - first_query;  // from first_query on
  if (queries <= 0) return;
  const int first_step = item.first / 16, steps = (item.end + 15) / 16 - first_step, tiles = (steps + KEY_GROUPS - 1) / KEY_GROUPS;
  const long long* table = page_table + item.row * table_stride;
  auto page_of = [&](int step) { return step < steps ? (int)table[(first_step + step) * 16 / PAGE] : 0; };
  int pages = 0, next_pages = page_of(lane);  // of the steps of 32 / KEY_GROUPS tiles
  auto place_of_step = [&](int tile, int step) {  // of a step's first key among the vectors of a pool: no card holds 2^31
    const int page = __shfl_sync(~0u, pages, (tile * KEY_GROUPS + step) % 32);
    return (page * PAGE + (first_step + tile * KEY_GROUPS + step) * 16 % PAGE) * KV + head;
  };
  const int first_key = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;  // of a thread's copies, AT_ONCE keys from one to the next
  const int from_offset = first_key % 16 * (KV * ROW) + piece * 16;
  auto copy = [&](char* slot, int tile, bool is_value) {
    if (!is_value && tile * KEY_GROUPS % 32 == 0) pages = next_pages, next_pages = page_of(tile * KEY_GROUPS + 32 + lane);
    const u32 unseen = item.first - (first_step + tile * KEY_GROUPS) * 16, seen = item.end - item.first;  // keys
    const char* pool = is_value ? values : keys;
    const int to = 16 * (is_value ? value_place(first_key, piece) : key_place(first_key, piece));
#pragma unroll
    for (int j = 0; j < KEYS / AT_ONCE; j++) {
      const int key = AT_ONCE * j + first_key, step = AT_ONCE > 16 ? key / 16 : AT_ONCE * j / 16;
      const char* at = pool + (long long)place_of_step(tile, step) * ROW + AT_ONCE * j % 16 * (KV * ROW) + from_offset;
      copy_async<16>(slot + to + AT_ONCE * j * ROW, at, key - unseen < seen);
    }
    if (EIGHT_BITS && !is_value) {  // the aligned word that a scale is in
      const int key = threadIdx.x % KEYS;
      const int place = place_of_step(tile, key / 16) + key % 16 * KV;
      if (threadIdx.x < 2 * KEYS)
        copy_async<4>(slot + KEYS * ROW + threadIdx.x * 4, (threadIdx.x < KEYS ? key_scales : value_scales) + place / 2 * 2, key - unseen < seen);
    }
  };
  auto begin_copies = [&](int half, int slot) {  // keys and values of a tile are its halves
    if (half < 2 * tiles) copy(ring + slot * SLOT, half / 2, half % 2);
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < SLOTS - 1; i++) begin_copies(i, i);

#pragma unroll
  for (int i = threadIdx.x; i < STEPS / 2 * NT * 32; i += THREADS) {
    const int pair = i / (NT * 32), m = i / 32 % NT * 8 + i % 32 / 4;
    const int from = EIGHT_BITS ? (pair / 2 * 4 + i % 4) * 16 + pair % 2 * 8 : (4 * pair + i % 4) * 8, query = first_query + m;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (m < queries)
      v = *(const uint4*)(q + ((long long)(item.first_token + query / GROUP) * (KV * GROUP) + head * GROUP + query % GROUP) * D + from);
    shared_queries[i] = make_uint4(as_operand(v.x), as_operand(v.y), as_operand(v.z), as_operand(v.w));
  }
  if (threadIdx.x < QUERIES) shared_tops[0][threadIdx.x] = NO_KEY;

  float sums[WARP_TILES][NT][4], total[OWN][2];
#pragma unroll
  for (int t = 0; t < WARP_TILES; t++)
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int k = 0; k < 4; k++) sums[t][n][k] = 0;
#pragma unroll
  for (int n = 0; n < OWN; n++) total[n][0] = total[n][1] = 0;

  int slot = 0, known = 0;  // which of the shared maxima are valid
  auto begin_half = [&](int half) {
    await_copies<SLOTS - 2>();
    __syncthreads();  // what comes next is there for all, and all are done with what was before
    begin_copies(half + SLOTS - 1, slot == 0 ? SLOTS - 1 : slot - 1);
    const char* at = ring + slot * SLOT;
    slot = slot == SLOTS - 1 ? 0 : slot + 1;
    return at;
  };
  for (int tile = 0; tile < tiles; tile++) {
    const char* at = begin_half(2 * tile);
    float x[OWN][4], value_scale[2] = {1, 1};
    float2 top[OWN];
    bool more = false;
    if (has_logits) {
      float odd[OWN][4];  // sums of odd steps, where there are registers for them: they need not wait for those of even ones
#pragma unroll
      for (int n = 0; n < OWN; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) x[n][k] = odd[n][k] = 0;
#pragma unroll 4
      for (int j = 0; j < PIECES / 4; j++) {
        const uint4 low = ((const uint4*)at)[key_place(row, 4 * j + c)], high = ((const uint4*)at)[key_place(row + 8, 4 * j + c)];
        const u32 lows[4] = {low.x, low.y, low.z, low.w}, highs[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
        for (int pair = 0; pair < (EIGHT_BITS ? 2 : 1); pair++) {
          u32 a[2][4];
#pragma unroll
          for (int w = 0; w < 2; w++)
            if (EIGHT_BITS)
              decode_keys(a[w], lows[2 * pair + w], highs[2 * pair + w]);
            else
              a[w][0] = lows[2 * w], a[w][1] = highs[2 * w], a[w][2] = lows[2 * w + 1], a[w][3] = highs[2 * w + 1];
#pragma unroll
          for (int n = 0; n < OWN; n++) {
            const uint4 b = shared_queries[((EIGHT_BITS ? 2 * j + pair : j) * NT + first_own + n) * 32 + lane];
            mma(x[n], a[0], b.x, b.y);
            mma(OWN <= 2 ? odd[n] : x[n], a[1], b.z, b.w);
          }
        }
      }
      float unit[2] = {scale, scale};
      if (EIGHT_BITS)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const int key = row + 8 * r;
          const u16* scales = (const u16*)(at + KEYS * ROW) + ((key * KV + head) & 1) + 2 * key;
          unit[r] *= UNIT * half_to_float(scales[0]);
          value_scale[r] = GAIN * half_to_float(scales[2 * KEYS]);
        }
      const int token = (first_step + tile * KEY_GROUPS) * 16;
      const bool masked = !all_seen(item, window, token, KEYS);
#pragma unroll
      for (int n = 0; n < OWN; n++) {
        top[n] = *(const float2*)&shared_tops[known][8 * (first_own + n) + 2 * c];
#pragma unroll
        for (int k = 0; k < 4; k++) {
          x[n][k] = (x[n][k] + odd[n][k]) * unit[k / 2];
          if (masked && !sees(item, window, first_query + 8 * (first_own + n) + 2 * c + k % 2, token + row + k / 2 * 8)) x[n][k] = NO_KEY;
          more |= x[n][k] > (k % 2 ? top[n].y : top[n].x) + SLACK;
        }
      }
    }
    if (__syncthreads_or(more)) {  // queries get new maxima
      if (has_logits)
#pragma unroll
        for (int n = 0; n < OWN; n++) {
          float2 most = make_float2(fmaxf(x[n][0], x[n][2]), fmaxf(x[n][1], x[n][3]));
#pragma unroll
          for (int i = 4; i < 32; i *= 2) {
            most.x = fmaxf(most.x, __shfl_xor_sync(~0u, most.x, i));
            most.y = fmaxf(most.y, __shfl_xor_sync(~0u, most.y, i));
          }
          if (g == 0) *(float2*)&found_tops[key_group][8 * (first_own + n) + 2 * c] = most;
        }
      __syncthreads();
#pragma unroll
      for (int n = 0; n < NT; n++) {
        const float2 old = *(const float2*)&shared_tops[known][8 * n + 2 * c];
        float2 most = old;
#pragma unroll
        for (int i = 0; i < KEY_GROUPS; i++) {
          const float2 found = *(const float2*)&found_tops[i][8 * n + 2 * c];
          most.x = fmaxf(most.x, found.x), most.y = fmaxf(most.y, found.y);
        }
        const float2 shrink = make_float2(exp2_of(old.x - shift_of(most.x)), exp2_of(old.y - shift_of(most.y)));
#pragma unroll
        for (int t = 0; t < WARP_TILES; t++)
#pragma unroll
          for (int k = 0; k < 4; k++) sums[t][n][k] *= k % 2 ? shrink.y : shrink.x;
#pragma unroll
        for (int i = 0; i < OWN; i++)
          if (first_own + i == n) top[i] = most, total[i][0] *= shrink.x, total[i][1] *= shrink.y;
        if (warp == 0 && g == 0) *(float2*)&shared_tops[1 - known][8 * n + 2 * c] = most;
      }
      known = 1 - known;
    }
    if (has_logits)
#pragma unroll
      for (int n = 0; n < OWN; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const float p = exp2_of(x[n][2 * r] - shift_of(top[n].x)), p1 = exp2_of(x[n][2 * r + 1] - shift_of(top[n].y));
          total[n][0] += p, total[n][1] += p1;
          const u32 both = EIGHT_BITS ? pack2<false>(p * value_scale[r], p1 * value_scale[r]) : pack2<KIND == 1>(p, p1);
          *(u32*)&weights[(row + 8 * r) * WEIGHTS_ROW + 8 * (first_own + n) + 2 * c] = both;
        }

    at = begin_half(2 * tile + 1);
#pragma unroll 2
    for (int step = 0; step < KEY_GROUPS; step++) {
      u32 a[WARP_TILES][4];
      if (EIGHT_BITS) {  // a lane's dimensions are D / 64 that lie side by side
        u32 words[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
          const int key = 16 * step + 2 * c + k % 2 + k / 2 * 8, byte = (warp * 8 + g) * (D / 64);
          const char* from = at + 16 * value_place(key, byte / 16) + byte % 16;
          words[k] = D == 256 ? *(const u32*)from : *(const u16*)from;
        }
        decode_values<0>(a[0], words);
        if (D == 256) decode_values<1>(a[WARP_TILES - 1], words);
      } else {
#pragma unroll
        for (int t = 0; t < WARP_TILES; t++)
          load_transposed(a[t], at + 16 * value_place(16 * step + lane / 16 * 8 + lane % 8, 2 * (warp * WARP_TILES + t) + lane / 8 % 2));
      }
#pragma unroll
      for (int n = 0; n < NT; n += 2) {
        u32 b[4];  // keys 0 ... 7 and 8 ... 15 of queries 8 n ..., then of the next 8
        load_transposed(b, weights + (16 * step + lane % 16) * WEIGHTS_ROW + 8 * (n + lane / 16));
#pragma unroll
        for (int t = 0; t < WARP_TILES; t++) mma(sums[t][n], a[t], b[0], b[1]), mma(sums[t][n + 1], a[t], b[2], b[3]);
      }
    }
  }

  await_copies<0>();
  __syncthreads();
  float* all = (float*)ring;  // [QUERIES][D], in an order that spares banks
  auto place_of = [&](int query, int dim) { return query * D + (dim ^ query / 2 % 4 * 8); };
#pragma unroll
  for (int t = 0; t < WARP_TILES; t++)
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const int dim = warp * (D / 8) + (EIGHT_BITS ? g * (D / 64) + 2 * t + k / 2 : 16 * t + 8 * (k / 2) + g);
        all[place_of(8 * n + 2 * c + k % 2, dim)] = sums[t][n][k];
      }
#pragma unroll
  for (int n = 0; n < OWN; n++)
#pragma unroll
    for (int k = 0; k < 2; k++) {
#pragma unroll
      for (int i = 4; i < 32; i *= 2) total[n][k] += __shfl_xor_sync(~0u, total[n][k], i);
      if (has_logits && g == 0) found_totals[key_group][8 * (first_own + n) + 2 * c + k] = total[n][k];
    }
  __syncthreads();
  const long long first_sum = ((long long)blockIdx.y * KV + head) * most_queries + first_query;
  const Output output = {gate, out, gate_token_stride, gate_head_stride, item.first_token, head};
  constexpr int BATCH = QUERIES * (D / 4) / THREADS / 2;  // gates on their way at once
  for (int first = 0; first < 2; first++) {
    uint2 gates[BATCH];
#pragma unroll
    for (int j = 0; j < BATCH; j++) {
      const int i = THREADS * (first * BATCH + j) + threadIdx.x;
      if (i / (D / 4) < queries && item.parts == 1) gates[j] = output.load_gate(first_query + i / (D / 4), i % (D / 4));
    }
#pragma unroll
    for (int j = 0; j < BATCH; j++) {
      const int i = THREADS * (first * BATCH + j) + threadIdx.x, m = i / (D / 4), f = i % (D / 4);
      if (m >= queries) continue;
      float4 y = *(const float4*)(all + place_of(m, 4 * f));
      float sum = 0;
#pragma unroll
      for (int k = 0; k < KEY_GROUPS; k++) sum += found_totals[k][m];
      if (item.parts > 1) {
        *((float4*)(partial + (first_sum + m) * D) + f) = y;
        if (f == 0) tops[first_sum + m] = shared_tops[known][m], totals[first_sum + m] = sum;
      } else {
        output.store(y, OUT_UNIT / sum, gates[j], first_query + m, f);
      }
    }
  }
}
