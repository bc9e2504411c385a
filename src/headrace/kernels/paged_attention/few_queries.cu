// Attention of one item for at most 8 queries of a key head (tokens x GROUP): a warp takes every WARPS-th step of 16 keys by itself, with a
// ring of SLOTS (odd) steps' keys or values of its own and a running maximum of its own, so the loop has no barrier. The warps' sums are
// combined at the end. The only item of a row writes its output; others leave sums, and the last one to do so adds them.
// Grid [KV, items]. Macros: WARPS, SLOTS, RESIDENT (blocks of a processor).
#define THREADS (32 * WARPS)
#define AHEAD (SLOTS / 2)                             // steps whose keys and values are on their way
#define SLOT (16 * ROW + (EIGHT_BITS ? 128 : 0))      // bytes; behind the codes of the keys 4 bytes for each key's and value's scale

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) few_queries(
    const u16* __restrict__ q, const char* __restrict__ keys, const char* __restrict__ values, const u16* __restrict__ key_scales,
    const u16* __restrict__ value_scales, const u16* __restrict__ gate, u16* __restrict__ out, float* partial, float* tops, float* totals,
    const long long* __restrict__ page_table, const int* __restrict__ items, int* arrived, float scale, int window,
    long long table_stride, long long gate_token_stride, long long gate_head_stride, int most_queries) {
  extern __shared__ __align__(128) char ring_of_all[];
  __shared__ float warp_tops[WARPS][8], warp_totals[WARPS][8];
  __shared__ int is_last;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4, head = blockIdx.x;
  char* ring = ring_of_all + warp * SLOTS * SLOT;

  let_next_kernel_start();
  await_previous_kernel();
  const Item item = load_item(items);
  if (item.row < 0) return;
  const int queries = item.tokens * GROUP, first_step = item.first / 16 + warp;
  const int steps = max(0, ((item.end + 15) / 16 - first_step + WARPS - 1) / WARPS);
  const long long* table = page_table + item.row * table_stride;
  auto page_of = [&](int i) { return i < steps ? (int)table[(first_step + WARPS * i) * 16 / PAGE] : 0; };
  int pages = 0, next_pages = page_of(lane);
  long long place = 0;  // of the first key of a step among the vectors of a pool
  auto find = [&](int i) {
    if (i % 32 == 0) pages = next_pages, next_pages = page_of(i + 32 + lane);
    const int page = __shfl_sync(~0u, pages, i % 32);
    place = ((long long)page * PAGE + (first_step + WARPS * i) * 16 % PAGE) * KV + head;
  };
  auto copy = [&](char* slot, const char* pool, int i, bool is_value) {
    const int token = (first_step + WARPS * i) * 16, from = item.first - token, until = item.end - token;
    const char* at = pool + place * ROW;
#pragma unroll
    for (int j = 0; j < PIECES / 2; j++) {
      const int key = (32 * j + lane) / PIECES, piece = lane % PIECES;
      const int to = is_value ? value_place(key, piece) : key_place(key, piece);
      copy_async<16>(slot + to * 16, at + key * (KV * ROW) + piece * 16, key >= from && key < until);
    }
    if (EIGHT_BITS && !is_value) {  // the aligned word that a scale is in
      const int key = lane % 16;
      const u16* scale_at = (lane < 16 ? key_scales : value_scales) + (place + key * KV) / 2 * 2;
      copy_async<4>(slot + 16 * ROW + lane * 4, scale_at, key >= from && key < until);
    }
  };
#pragma unroll
  for (int i = 0; i < AHEAD; i++) {
    if (i < steps) find(i), copy(ring + 2 * i * SLOT, keys, i, false);
    commit_copies();
    if (i < steps) copy(ring + (2 * i + 1) * SLOT, values, i, true);
    commit_copies();
  }

  u32 b[STEPS][2];  // the queries
  {
    const u16* query = q + ((long long)(item.first_token + g / GROUP) * (KV * GROUP) + head * GROUP + g % GROUP) * D;
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
      const uint4 none = make_uint4(0, 0, 0, 0);
      const int from = EIGHT_BITS ? (j / 2 * 4 + c) * 16 + j % 2 * 8 : (4 * j + c) * 8;
      const uint4 v = g < queries ? *(const uint4*)(query + from) : none;
      b[2 * j][0] = as_operand(v.x), b[2 * j][1] = as_operand(v.y), b[2 * j + 1][0] = as_operand(v.z), b[2 * j + 1][1] = as_operand(v.w);
    }
  }
  float sums[STEPS][4], top[2] = {NO_KEY, NO_KEY}, total[2] = {0, 0};
#pragma unroll
  for (int t = 0; t < STEPS; t++)
#pragma unroll
    for (int i = 0; i < 4; i++) sums[t][i] = 0;

  int slot = 0;
  auto begin_half = [&](int i, bool is_value) {  // waits for its copies, and begins those of AHEAD steps later
    await_copies<2 * AHEAD - 1>();
    __syncwarp();
    const int free_slot = slot == 0 ? SLOTS - 1 : slot - 1;
    if (i + AHEAD < steps) {
      if (!is_value) find(i + AHEAD);
      copy(ring + free_slot * SLOT, is_value ? values : keys, i + AHEAD, is_value);
    }
    commit_copies();
    const char* at = ring + slot * SLOT;
    slot = slot == SLOTS - 1 ? 0 : slot + 1;
    return at;
  };
  for (int i = 0; i < steps; i++) {
    const char* at = begin_half(i, false);
    float s[2][4] = {};
#pragma unroll
    for (int j = 0; j < PIECES / 4; j++) {
      const uint4 low = ((const uint4*)at)[key_place(g, 4 * j + c)], high = ((const uint4*)at)[key_place(g + 8, 4 * j + c)];
      const u32 lows[4] = {low.x, low.y, low.z, low.w}, highs[4] = {high.x, high.y, high.z, high.w};
      u32 a[4];
#pragma unroll
      for (int w = 0; w < (EIGHT_BITS ? 4 : 2); w++) {
        if (EIGHT_BITS)
          decode_keys(a, lows[w], highs[w]);
        else
          a[0] = lows[2 * w], a[1] = highs[2 * w], a[2] = lows[2 * w + 1], a[3] = highs[2 * w + 1];
        const int step = (EIGHT_BITS ? 4 : 2) * j + w;
        mma(s[w % 2], a, b[step][0], b[step][1]);
      }
    }
    float x[4], value_scale[2] = {1, 1};
#pragma unroll
    for (int r = 0; r < 2; r++) {  // keys g and g + 8
      float unit = scale;
      if (EIGHT_BITS) {
        const u16* scales = (const u16*)(at + 16 * ROW) + (((g + 8 * r) * KV + head) & 1);
        unit *= UNIT * half_to_float(scales[2 * (g + 8 * r)]);
        value_scale[r] = GAIN * half_to_float(scales[2 * (g + 8 * r) + 32]);
      }
      x[2 * r] = (s[0][2 * r] + s[1][2 * r]) * unit, x[2 * r + 1] = (s[0][2 * r + 1] + s[1][2 * r + 1]) * unit;
    }
    const int token = (first_step + WARPS * i) * 16;
    if (!all_seen(item, window, token, 16))
#pragma unroll
      for (int k = 0; k < 4; k++)
        if (!sees(item, window, 2 * c + k % 2, token + g + k / 2 * 8)) x[k] = NO_KEY;
    if (__any_sync(~0u, fmaxf(x[0], x[2]) > top[0] + SLACK || fmaxf(x[1], x[3]) > top[1] + SLACK)) {
      float shrink[2];
#pragma unroll
      for (int k = 0; k < 2; k++) {
        float most = fmaxf(top[k], fmaxf(x[k], x[k + 2]));
#pragma unroll
        for (int n = 4; n < 32; n *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, n));
        shrink[k] = exp2_of(top[k] - shift_of(most));
        top[k] = most, total[k] *= shrink[k];
      }
#pragma unroll
      for (int t = 0; t < STEPS; t++)
#pragma unroll
        for (int k = 0; k < 4; k++) sums[t][k] *= shrink[k % 2];
    }
    float p[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      p[k] = exp2_of(x[k] - shift_of(top[k % 2]));
      total[k % 2] += p[k];
      if (EIGHT_BITS) p[k] *= value_scale[k / 2];
    }
    u32 weights[2];  // of keys 2 c, 2 c + 1 and 2 c + 8, 2 c + 9 for query g
#pragma unroll
    for (int r = 0; r < 2; r++) weights[r] = transposed(pack2<KIND == 1>(p[2 * r], p[2 * r + 1]));

    at = begin_half(i, true);
    if (EIGHT_BITS) {
#pragma unroll
      for (int j = 0; j < PIECES / 8; j++) {
        uint4 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = ((const uint4*)at)[value_place(2 * c + k % 2 + k / 2 * 8, 8 * j + g)];
#pragma unroll
        for (int w = 0; w < 4; w++) {
          u32 words[4], a[2][4];
#pragma unroll
          for (int k = 0; k < 4; k++) words[k] = w == 0 ? v[k].x : w == 1 ? v[k].y : w == 2 ? v[k].z : v[k].w;
          decode_values<0>(a[0], words), decode_values<1>(a[1], words);
          mma(sums[8 * j + 2 * w], a[0], weights[0], weights[1]);
          mma(sums[8 * j + 2 * w + 1], a[1], weights[0], weights[1]);
        }
      }
    } else {
#pragma unroll
      for (int t = 0; t < STEPS; t++) {
        u32 a[4];
        load_transposed(a, at + 16 * value_place(lane / 16 * 8 + lane % 8, 2 * t + lane / 8 % 2));
        mma(sums[t], a, weights[0], weights[1]);
      }
    }
  }

  await_copies<0>();
  __syncwarp();
  float* own = (float*)ring;  // [8][D], in an order that spares banks
  auto place_of = [&](int query, int dim) { return query * D + (dim ^ query / 2 * 8); };
#pragma unroll
  for (int t = 0; t < STEPS; t++)
#pragma unroll
    for (int k = 0; k < 2; k++) {  // dimensions of rows g and g + 8
      const int dim = EIGHT_BITS ? (t / 8 * 8 + g) * 16 + t % 8 * 2 + k : 16 * t + 8 * k + g;
      own[place_of(2 * c, dim)] = sums[t][2 * k], own[place_of(2 * c + 1, dim)] = sums[t][2 * k + 1];
    }
#pragma unroll
  for (int k = 0; k < 2; k++) {
#pragma unroll
    for (int n = 4; n < 32; n *= 2) total[k] += __shfl_xor_sync(~0u, total[k], n);
    if (g == 0) warp_tops[warp][2 * c + k] = top[k], warp_totals[warp][2 * c + k] = total[k];
  }
  __syncthreads();
  const long long first_sum = ((long long)blockIdx.y * KV + head) * most_queries;
  const Output output = {gate, out, gate_token_stride, gate_head_stride, item.first_token, head};
  for (int i = threadIdx.x; i < queries * (D / 4); i += THREADS) {
    const int n = i / (D / 4), f = i % (D / 4);
    const uint2 gates = item.parts == 1 ? output.load_gate(n, f) : make_uint2(0, 0);
    float most = NO_KEY, all = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) most = fmaxf(most, warp_tops[w][n]);
    float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float weight = exp2_of(warp_tops[w][n] - shift_of(most));
      const float4 v = *(const float4*)((const float*)(ring_of_all + w * SLOTS * SLOT) + place_of(n, 4 * f));
      all += weight * warp_totals[w][n];
      y.x += weight * v.x, y.y += weight * v.y, y.z += weight * v.z, y.w += weight * v.w;
    }
    if (item.parts > 1) {
      *((float4*)(partial + (first_sum + n) * D) + f) = y;
      if (f == 0) tops[first_sum + n] = most, totals[first_sum + n] = all;
    } else {
      output.store(y, OUT_UNIT / all, gates, n, f);
    }
  }
  if (item.parts == 1) return;
  __threadfence();
  __syncthreads();
  int* arrivals = arrived + item.row * KV + head;
  if (threadIdx.x == 0) is_last = atomicAdd(arrivals, 1) == item.parts - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  if (threadIdx.x == 0) *arrivals = 0;  // for the next layer
  add_parts<THREADS>(output, partial, tops, totals, item.first_item, item.parts, 0, queries, most_queries);
}
