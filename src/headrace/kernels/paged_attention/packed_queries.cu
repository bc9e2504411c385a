// Attention of one item for up to 16 TILES queries of a key head (tokens x GROUP), over pools of 16 bits: queries are the rows of S = Q K^T and
// of O = P V, so P goes from one product to the next in registers. A warp has 16 queries; the TILES warps of a part share a ring of SLOTS
// steps' keys or values, and the PARTS parts take every PARTS-th step of 32 keys, each with running maxima of its own, which come together
// at the end. Grid [KV x blocks of 16 TILES queries, items]. Macros: TILES, PARTS, SLOTS.
#define KEYS 32  // of a step
#define QUERIES (16 * TILES)
#define THREADS (32 * TILES * PARTS)
#define SLOT (KEYS * ROW)
#define AT_ONCE (32 / PIECES)  // keys that a warp copies at once
#define AHEAD (SLOTS - 1)  // of steps' keys and values, that are on their way

__device__ __forceinline__ void await_part(int part) { asm volatile("bar.sync %0, %1;" ::"r"(part + 1), "n"(32 * TILES) : "memory"); }

extern "C" __global__ void __launch_bounds__(THREADS, 1) packed_queries(
    const u16* __restrict__ q, const char* __restrict__ keys, const char* __restrict__ values, const u16* __restrict__ gate,
    u16* __restrict__ out, float* __restrict__ partial, float* __restrict__ tops, float* __restrict__ totals,
    const long long* __restrict__ page_table, const int* __restrict__ items, float scale, int window, long long table_stride,
    long long gate_token_stride, long long gate_head_stride, int most_queries) {
  extern __shared__ __align__(128) char ring_of_all[];
  __shared__ float part_tops[PARTS][QUERIES], part_totals[PARTS][QUERIES];
  __shared__ Item item;  // registers are short
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4, tile = warp % TILES, part = warp / TILES;
  const int blocks = gridDim.x / KV, head = blockIdx.x / blocks, first_query = blockIdx.x % blocks * QUERIES;
  char* const ring = ring_of_all + part * SLOTS * SLOT;
  uint4* const operands = (uint4*)(ring_of_all + PARTS * SLOTS * SLOT) + tile * STEPS * 32 + lane;  // of the queries: [STEPS][32]

  let_next_kernel_start();
  await_previous_kernel();
  if (threadIdx.x == 0) item = load_item(items);
  __syncthreads();
  if (item.row < 0) return;
  const int queries = item.tokens * GROUP - first_query;  // from first_query on
  if (queries <= 0) return;
  const int first_step = item.first / KEYS + part, steps = max(0, ((item.end + KEYS - 1) / KEYS - first_step + PARTS - 1) / PARTS);
  auto page_of = [&](int half) {  // of 16 keys
    const int at = ((first_step + PARTS * (half / 2)) * 2 + half % 2) * 16;
    return at < item.end ? (int)page_table[item.row * table_stride + at / PAGE] : 0;
  };
  int pages = 0, next_pages = page_of(lane);
  int places[2] = {0, 0};  // of a step's first and 17th key among the vectors of a pool: no card holds 2^31
  auto copy = [&](char* slot, int i, bool is_value) {
    const int token = (first_step + PARTS * i) * KEYS, piece = lane % PIECES;
    if (!is_value) {
      if (i % 16 == 0) pages = next_pages, next_pages = page_of(2 * i + 32 + lane);
#pragma unroll
      for (int h = 0; h < 2; h++)
        places[h] = (__shfl_sync(~0u, pages, (2 * i + h) % 32) * PAGE + (token + 16 * h) % PAGE - 16 * h) * KV + head;
    }
    const char* const pool = (is_value ? values : keys) + piece * 16;
    const char* const near = pool + (long long)places[0] * ROW;
    const char* const far = pool + (long long)places[1] * ROW;
    const u32 own = 16 * (is_value ? value_place(lane / PIECES, piece) : key_place(lane / PIECES, piece));
    const int from = item.first - token - lane / PIECES, until = item.end - token - lane / PIECES;
    auto copy_four = [&](int four, bool all_valid) {  // keys, of which this lane has every AT_ONCE-th
#pragma unroll
      for (int k = 0; k < 4; k += AT_ONCE) {
        const int key = 4 * four + k;
        const u32 swizzle = is_value ? key & 7 : (key & 1) << 2;  // of value_place and key_place: lane / PIECES has other bits
        copy_async<16>(slot + key * ROW + (own ^ 16 * swizzle), (four < 4 ? near : far) + (key + lane / PIECES) * (KV * ROW),
                       all_valid || (key >= from && key < until));
      }
    };
    if (token >= item.first && token + KEYS <= item.end) {
#pragma unroll
      for (int n = 0; n < (KEYS / 4 + TILES - 1) / TILES; n++)
        if (tile + n * TILES < KEYS / 4) copy_four(tile + n * TILES, true);
    } else {
#pragma unroll 1
      for (int four = tile; four < KEYS / 4; four += TILES) copy_four(four, false);
    }
  };
  auto begin_copies = [&](int half, int slot) {  // a step's keys and values are its halves
    if (half / 2 < steps) copy(ring + slot * SLOT, half / 2, half % 2);
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < AHEAD; i++) begin_copies(i, i);

  for (int j = part; j < PIECES / 4; j += PARTS) {  // of two steps
    uint4 v[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {  // queries g and g + 8
      const int m = 16 * tile + g + 8 * r, query = first_query + m;
      const u16* from = q + ((long long)(item.first_token + query / GROUP) * (KV * GROUP) + head * GROUP + query % GROUP) * D;
      v[r] = m < queries ? *(const uint4*)(from + (4 * j + c) * 8) : make_uint4(0, 0, 0, 0);
    }
    operands[2 * j * 32] = make_uint4(as_operand(v[0].x), as_operand(v[1].x), as_operand(v[0].y), as_operand(v[1].y));
    operands[(2 * j + 1) * 32] = make_uint4(as_operand(v[0].z), as_operand(v[1].z), as_operand(v[0].w), as_operand(v[1].w));
  }
  __syncthreads();
  float sums[2 * STEPS][4], top[2] = {NO_KEY, NO_KEY}, total[2] = {0, 0};
#pragma unroll
  for (int t = 0; t < 2 * STEPS; t++)
#pragma unroll
    for (int k = 0; k < 4; k++) sums[t][k] = 0;

  u32 own_key = 16 * key_place(g, c), own_value = 16 * value_place(lane % 16, lane / 16);  // whose pieces 4 j and 2 t further lie by xor
  int slot = 0;
  auto begin_half = [&](int half) {
    await_copies<AHEAD - 1>();
    await_part(part);  // what comes next is there for all, and all are done with what was before
    begin_copies(half + AHEAD, slot == 0 ? AHEAD : slot - 1);
    const char* at = ring + slot * SLOT;
    slot = slot == AHEAD ? 0 : slot + 1;
    return at;
  };
#pragma unroll 1
  for (int i = 0; i < steps; i++) {
    const char* at = begin_half(2 * i);
    float x[KEYS / 8][4] = {}, most[2] = {NO_KEY, NO_KEY};
#pragma unroll 4
    for (int j = 0; j < PIECES / 4; j++) {
      uint4 k[KEYS / 8];
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++) k[n] = *(const uint4*)(at + (own_key ^ j % 2 * 64) + j / 2 * 128 + n * (8 * ROW));
      const uint4 first = operands[2 * j * 32], second = operands[(2 * j + 1) * 32];
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++) mma(x[n], {first.x, first.y, first.z, first.w}, k[n].x, k[n].y);
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++) mma(x[n], {second.x, second.y, second.z, second.w}, k[n].z, k[n].w);
    }
    const int token = (first_step + PARTS * i) * KEYS;
    if (!all_seen(item, window, token, KEYS))
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int k = 0; k < 4; k++)
          if (!sees(item, window, first_query + 16 * tile + g + k / 2 * 8, token + 8 * n + 2 * c + k % 2)) x[n][k] = NO_KEY;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
      for (int k = 0; k < 4; k++) x[n][k] *= scale, most[k / 2] = fmaxf(most[k / 2], x[n][k]);
    if (__any_sync(~0u, most[0] > top[0] + SLACK || most[1] > top[1] + SLACK)) {
      float shrink[2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float new_top = fmaxf(top[r], most[r]);
#pragma unroll
        for (int n = 1; n < 4; n *= 2) new_top = fmaxf(new_top, __shfl_xor_sync(~0u, new_top, n));
        shrink[r] = exp2_of(top[r] - shift_of(new_top));
        top[r] = new_top, total[r] *= shrink[r];
      }
#pragma unroll
      for (int t = 0; t < 2 * STEPS; t++)
#pragma unroll
        for (int k = 0; k < 4; k++) sums[t][k] *= shrink[k / 2];
    }
    u32 weights[KEYS / 16][4];
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float p = exp2_of(x[n][2 * r] - shift_of(top[r])), p1 = exp2_of(x[n][2 * r + 1] - shift_of(top[r]));
        total[r] += p + p1;
        weights[n / 2][n % 2 * 2 + r] = pack2<KIND == 1>(p, p1);
      }

    at = begin_half(2 * i + 1);
#pragma unroll
    for (int t = 0; t < STEPS; t++)
#pragma unroll
      for (int h = 0; h < KEYS / 16; h++) {
        u32 b[4];  // keys 0 ... 7 and 8 ... 15 of 8 dimensions, then of the next 8
        load_transposed(b, at + (own_value ^ t % 4 * 32) + t / 4 * 128 + h * (16 * ROW));
        mma(sums[2 * t], weights[h], b[0], b[1]), mma(sums[2 * t + 1], weights[h], b[2], b[3]);
      }
  }

  await_copies<0>();
#pragma unroll
  for (int r = 0; r < 2; r++) {
#pragma unroll
    for (int n = 1; n < 4; n *= 2) total[r] += __shfl_xor_sync(~0u, total[r], n);
    if (c == 0) part_tops[part][16 * tile + g + 8 * r] = top[r], part_totals[part][16 * tile + g + 8 * r] = total[r];
  }
  __syncthreads();
  float* const all = (float*)ring_of_all;  // [QUERIES][D], in an order that spares banks
  auto place_of = [&](int query, int dim) { return query * D + (dim ^ query % 8 * 8); };
  float weight[2];  // of this part's sums
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float most = NO_KEY;
#pragma unroll
    for (int p = 0; p < PARTS; p++) most = fmaxf(most, part_tops[p][16 * tile + g + 8 * r]);
    weight[r] = exp2_of(top[r] - shift_of(most));
  }
#pragma unroll
  for (int p = PARTS - 1; p >= 0; p--) {  // one part after the other
    if (part == p)
#pragma unroll
      for (int t = 0; t < 2 * STEPS; t++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          float2* const to = (float2*)(all + place_of(16 * tile + g + 8 * r, 8 * t + 2 * c));
          const float2 before = p == PARTS - 1 ? make_float2(0, 0) : *to;
          *to = make_float2(before.x + sums[t][2 * r] * weight[r], before.y + sums[t][2 * r + 1] * weight[r]);
        }
    __syncthreads();
  }
  const long long first_sum = ((long long)blockIdx.y * KV + head) * most_queries + first_query;
  const Output output = {gate, out, gate_token_stride, gate_head_stride, item.first_token, head};
  constexpr int OF_A_THREAD = QUERIES * (D / 4) / THREADS, BATCH = OF_A_THREAD < 8 ? OF_A_THREAD : 8;  // gates on their way at once
#pragma unroll 1
  for (int first = 0; first < OF_A_THREAD; first += BATCH) {
    uint2 gates[BATCH];
#pragma unroll
    for (int j = 0; j < BATCH; j++) {
      const int i = THREADS * (first + j) + threadIdx.x;
      if (i / (D / 4) < queries && item.parts == 1) gates[j] = output.load_gate(first_query + i / (D / 4), i % (D / 4));
    }
#pragma unroll
    for (int j = 0; j < BATCH; j++) {
      const int i = THREADS * (first + j) + threadIdx.x, m = i / (D / 4), f = i % (D / 4);
      if (m >= queries) continue;
      const float4 y = *(const float4*)(all + place_of(m, 4 * f));
      float most = NO_KEY, sum = 0;
#pragma unroll
      for (int p = 0; p < PARTS; p++) most = fmaxf(most, part_tops[p][m]);
#pragma unroll
      for (int p = 0; p < PARTS; p++) sum += part_totals[p][m] * exp2_of(part_tops[p][m] - shift_of(most));
      if (item.parts > 1) {
        *((float4*)(partial + (first_sum + m) * D) + f) = y;
        if (f == 0) tops[first_sum + m] = most, totals[first_sum + m] = sum;
      } else {
        output.store(y, OUT_UNIT / sum, gates[j], first_query + m, f);
      }
    }
  }
}
