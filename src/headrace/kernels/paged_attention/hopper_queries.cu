// Attention of 64 queries (tokens x GROUP of a key head) for each of WARPGROUPS warpgroups on Hopper (sm_90a): of a tile of a long row's
// queries over all keys that it sees or, with ITEMS (of 16 bits), of a row's queries over an item of its keys. While a tile of values is
// being multiplied, the next tile's logits are, and their softmax is taken (the schedule is that of Shah et al., FlashAttention-3, 2024).
// One more warpgroup brings KEYS keys or values at a time, two ahead: of 16 bits, a warp lets the copy engine do it in boxes of 16 tokens
// by 64 numbers; of 8 bits, all four decode them, times their scales. Grid [KV, tiles] or [KV, items, blocks of queries]. Macros: ITEMS,
// WARPGROUPS, KEYS, RESIDENT (blocks of a processor), COLUMNS (dimensions that `sum_up` multiplies at once); it and `logits` are
// written by the host.
#define STAGES 2
#define BLOCK_QUERIES (64 * WARPGROUPS)
#define THREADS (128 * (WARPGROUPS + 1))
#define COLUMN_BLOCKS (D / 64)
#define COLUMN_BYTES (KEYS * 128)  // of 64 numbers of each key, a row of 128 bytes with the 128-byte swizzle
#define TILE_BYTES (COLUMN_BLOCKS * COLUMN_BYTES)
#define BOXES (KEYS / 16 * COLUMN_BLOCKS)
#define FILLERS (EIGHT_BITS ? 4 : 1)                                         // warps that bring
#define ENTRY_REGISTERS (65536 / (RESIDENT * THREADS) / 8 * 8)               // of each thread at first
#define FILLER_REGISTERS (!EIGHT_BITS ? 24 : D == 256 ? 72 : 104)            // of those that bring, and of those that multiply:
#define REGISTERS (((WARPGROUPS + 1) * ENTRY_REGISTERS - FILLER_REGISTERS) / WARPGROUPS)
#define WINDOW (KEYS * PIECES / 256)  // vectors of 16 codes that a thread has on their way: half of a tile's keys or values
#define AT_ONCE (128 / PIECES)        // keys that the threads decode at once: 8 or 16
#define KEYS_AT_ONCE (32 / PIECES)    // of them, a warp's

struct __align__(64) Boxes {
  char bytes[128];
};

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void await_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }
__device__ __forceinline__ void show_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void meet(int barrier, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }

__device__ __forceinline__ void make_barrier(u32 at, int arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory"); }
__device__ __forceinline__ void arrive(u32 at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); }
__device__ __forceinline__ void expect_bytes(u32 at, int bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory"); }
__device__ __forceinline__ void await(u32 at, u32 parity) {
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra AGAIN; }" ::"r"(at), "r"(parity) : "memory");
}
__device__ __forceinline__ void bring(u32 to, const Boxes* boxes, int column, int row, u32 barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(boxes), "r"(column), "r"(row), "r"(barrier) : "memory");
}

__device__ __forceinline__ void multiply2(u32& numbers, u32 by) { asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(numbers) : "r"(by)); }

// Two pairs of fp16 numbers from four codes.
__device__ __forceinline__ void decode4(u32& low, u32& high, u32 codes) {
#if KIND == 3
  asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b; }" : "=r"(low), "=r"(high) : "r"(codes));
#else
  low = decode2<0>(flipped(codes)), high = decode2<2>(flipped(codes));
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) hopper_queries(
    const u16* __restrict__ q,
#if EIGHT_BITS
    const char* __restrict__ keys, const char* __restrict__ values, const u16* __restrict__ key_scales, const u16* __restrict__ value_scales,
#else
    const __grid_constant__ Boxes keys, const __grid_constant__ Boxes values,
#endif
    const u16* __restrict__ gate, u16* __restrict__ out,
#if ITEMS
    float* __restrict__ partial, float* __restrict__ tops, float* __restrict__ totals, const long long* __restrict__ page_table,
    const int* __restrict__ items,
#else
    const long long* __restrict__ page_table, const int* __restrict__ lengths, const int* __restrict__ row_offsets, const int* __restrict__ tiles,
#endif
    float scale, int window, long long table_stride, long long gate_token_stride, long long gate_head_stride, int most_queries) {
  extern __shared__ __align__(1024) char shared[];  // keys [STAGES], values [STAGES], queries, barriers
  const u32 keys_at = shared_address(shared), values_at = keys_at + STAGES * TILE_BYTES, queries_at = values_at + STAGES * TILE_BYTES;
  const u32 barriers = queries_at + BLOCK_QUERIES * 2 * D;
  auto full = [&](int kind, int stage) { return barriers + 8 * (kind * STAGES + stage); };  // kind: 0 keys, 1 values
  auto empty = [&](int kind, int stage) { return barriers + 8 * ((2 + kind) * STAGES + stage); };
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * STAGES; i++) make_barrier(barriers + 8 * i, FILLERS), make_barrier(barriers + 8 * (2 * STAGES + i), 4 * WARPGROUPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  let_next_kernel_start();
  await_previous_kernel();
#if ITEMS
  const Item item = load_item(items);
  const int first_query = blockIdx.z * BLOCK_QUERIES;
  if (item.row < 0 || first_query >= item.tokens * GROUP) return;
#else
  const int row = tiles[2 * blockIdx.y], first_query = tiles[2 * blockIdx.y + 1] * BLOCK_QUERIES;
  const Item item = {row, 0, lengths[row], 1, row_offsets[row], row_offsets[row + 1] - row_offsets[row], lengths[row], 0};
#endif
  const int queries = item.tokens * GROUP, before = item.length - item.tokens;
  const int earliest = before + first_query / GROUP;  // positions of the block's first query, and of its last
  const int latest = min(before + (first_query + BLOCK_QUERIES - 1) / GROUP, item.length - 1);
  const int end = min(latest + 1, item.end), lowest = max(earliest + 1 - window, item.first);
  const int start = lowest / 16 * 16, count = max(1, (end - start + KEYS - 1) / KEYS);  // of a part of an item's queries, none may see a key

  const long long* table = page_table + item.row * table_stride;
  if (warp >= 4 * WARPGROUPS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FILLER_REGISTERS));
#if EIGHT_BITS
    const u32 thread = threadIdx.x - 128 * WARPGROUPS, piece = thread % PIECES, key_at_once = thread / PIECES;
    const u32 to = piece / 4 * COLUMN_BYTES + key_at_once * 128, odd = piece / 4 % 2, swizzle = key_at_once % 8;
    const u32 first_at = to + (piece % 4 * 2 + odd ^ swizzle) * 16;
    int pages = 0, next_pages = 0;  // of a tile's steps of 16 keys, a lane each
    const u32 unseen = lowest - start, seen = max(0, end - lowest);  // keys: of the first tile, and then
    auto load_pages = [&](int tile) {
      const int token = start + tile * KEYS + lane * 16;
      pages = next_pages, next_pages = lane < KEYS / 16 && token < end ? (int)table[token / PAGE] : 0;
    };
    uint4 codes[WINDOW];
    u32 scale_of_lane, next_scale;  // of the keys that the warp decodes in a tile, a lane each; twice in a word when it is used
    auto place_of = [&](int tile, u32 key) {  // among the vectors of a pool: no card holds 2^31
      return (__shfl_sync(~0u, pages, key / 16) * PAGE + (start + tile * KEYS + (int)key / 16 * 16) % PAGE + key % 16) * KV + head;
    };
    auto load = [&](uint4& into, int tile, int kind, int j) {
      const u32 key = AT_ONCE * j + key_at_once, place = place_of(tile, key);
      const bool valid = tile * KEYS + key - unseen < seen;
      into = valid ? *(const uint4*)((kind ? values : keys) + (u64)place * ROW + piece * 16) : make_uint4(0, 0, 0, 0);
    };
    auto load_scale = [&](int tile, int kind) {
      const u32 key = AT_ONCE * (lane / KEYS_AT_ONCE) + warp % 4 * KEYS_AT_ONCE + lane % KEYS_AT_ONCE, place = place_of(tile, key);
      next_scale = tile * KEYS + key - unseen < seen ? (kind ? value_scales : key_scales)[place] : 0;
    };
    auto store = [&](char* at, const uint4& v, int j) {
      at += AT_ONCE * j * 128;
      const u32 words[4] = {v.x, v.y, v.z, v.w}, pair = __shfl_sync(~0u, scale_of_lane, j * KEYS_AT_ONCE + lane / PIECES);
#pragma unroll
      for (int i = 0; i < 2; i++) {  // lanes that write at once begin with different halves, so that they meet no bank twice
        const u32 first = odd == i ? words[0] : words[2], second = odd == i ? words[1] : words[3];
        u32 numbers[4];
        decode4(numbers[0], numbers[1], first), decode4(numbers[2], numbers[3], second);
#pragma unroll
        for (int w = 0; w < 4; w++) multiply2(numbers[w], pair);
        *(uint4*)(at + (i ? first_at ^ 16 : first_at)) = make_uint4(numbers[0], numbers[1], numbers[2], numbers[3]);
      }
    };
    load_pages(0), load_pages(1);
    load_scale(0, 0);
#pragma unroll
    for (int j = 0; j < WINDOW; j++) load(codes[j], 0, 0, j);
#pragma unroll 1
    for (int tile = 0; tile < count; tile++) {
#pragma unroll 1
      for (int kind = 0; kind < 2; kind++) {
        const int stage = tile % STAGES, then = tile + kind;  // whose other kind comes next
        char* at = shared + (kind * STAGES + stage) * TILE_BYTES;
        scale_of_lane = next_scale * 0x10001u;
        await(empty(kind, stage), tile / STAGES + 1 & 1);
#pragma unroll
        for (int j = 0; j < WINDOW; j++) store(at, codes[j], j), load(codes[j], tile, kind, WINDOW + j);
        if (kind == 1) load_pages(tile + 2);  // those of the next tile are at hand now
        load_scale(then, 1 - kind);
#pragma unroll
        for (int j = 0; j < WINDOW; j++) store(at, codes[j], WINDOW + j), load(codes[j], then, 1 - kind, j);
        show_to_tensor_cores();
        __syncwarp();
        if (lane == 0) arrive(full(kind, stage));
      }
    }
#else
    if (warp == 4 * WARPGROUPS) {
      const int part = lane / COLUMN_BLOCKS, column = lane % COLUMN_BLOCKS, to = column * COLUMN_BYTES + part * 2048;
      auto token_of = [&](int tile) { return min(start + tile * KEYS + part * 16, (end - 1) / 16 * 16); };  // the last one again
      int next = (int)table[token_of(0) / PAGE];
      for (int tile = 0; tile < count; tile++) {
        const int stage = tile % STAGES, from = next * PAGE + token_of(tile) % PAGE;
        next = (int)table[token_of(tile + 1) / PAGE];
#pragma unroll
        for (int kind = 0; kind < 2; kind++) {
          await(empty(kind, stage), tile / STAGES + 1 & 1);
          if (lane == 0) expect_bytes(full(kind, stage), TILE_BYTES);
          __syncwarp();
          if (lane < BOXES)
            bring((kind ? values_at : keys_at) + stage * TILE_BYTES + to, kind ? &values : &keys, head * D + column * 64, from, full(kind, stage));
        }
      }
    }
#endif
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
    const int group = warp / 4, thread = threadIdx.x % 128, g = lane / 4, c = lane % 4;
    const int piece_of_query = thread % (D / 8);
    uint4 loaded[D / 16];  // all on their way at once
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
      const int m = first_query + group * 64 + (128 * i + thread) / (D / 8);
      const u16* from = q + ((long long)(item.first_token + m / GROUP) * (KV * GROUP) + head * GROUP + m % GROUP) * D + 8 * piece_of_query;
      loaded[i] = m < queries ? *(const uint4*)from : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
      const int in_group = (128 * i + thread) / (D / 8);
      const int at = piece_of_query / 8 * (BLOCK_QUERIES * 128) + (group * 64 + in_group) * 128 + (piece_of_query % 8 ^ in_group % 8) * 16;
      const uint4 v = loaded[i];
      *(uint4*)(shared + 2 * STAGES * TILE_BYTES + at) = make_uint4(as_operand(v.x), as_operand(v.y), as_operand(v.z), as_operand(v.w));
    }
    show_to_tensor_cores();
    meet(1 + group, 128);

    const u64 swizzled = 1ull << 62 | 64ull << 32;  // 128-byte swizzle, 1024 bytes from 8 rows to the next 8
    const u64 query_rows = (queries_at + group * 8192) >> 4 | 1ull << 16 | swizzled;
    auto multiply_keys = [&](float (&s)[KEYS / 2], int stage) {
      const u64 key_rows = (keys_at + stage * TILE_BYTES) >> 4 | 1ull << 16 | swizzled;
#pragma unroll
      for (int k = 0; k < STEPS; k++)
        logits(s, query_rows + (k / 4 * (BLOCK_QUERIES * 128) + k % 4 * 32) / 16, key_rows + (k / 4 * COLUMN_BYTES + k % 4 * 32) / 16, k);
      commit_products();
    };
    auto multiply_values = [&](float (&o)[D / COLUMNS][COLUMNS / 2], const u32 (&p)[KEYS / 16][4], int stage) {
      const u64 value_rows = (values_at + stage * TILE_BYTES) >> 4 | (u64)(COLUMN_BYTES / 16) << 16 | swizzled;
#pragma unroll
      for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
        for (int n = 0; n < D / COLUMNS; n++) sum_up(o[n], p[k], value_rows + k * 128 + n * (COLUMNS / 64 * COLUMN_BYTES / 16));
      commit_products();
    };
    auto await_values = [&](int tile) {  // rows that no query sees become zeros
      const int stage = tile % STAGES, token = start + tile * KEYS;
      await(full(1, stage), tile / STAGES & 1);
      if (!EIGHT_BITS && (token < lowest || token + KEYS > end)) {
        char* at = shared + (STAGES + stage) * TILE_BYTES;
        for (int i = thread; i < KEYS * COLUMN_BLOCKS * 8; i += 128) {
          const int key = i / 8 % KEYS;
          if (token + key < lowest || token + key >= end) *(uint4*)(at + 16 * i) = make_uint4(0, 0, 0, 0);
        }
        show_to_tensor_cores();
        meet(1 + group, 128);
      }
    };

    const int m = first_query + group * 64 + warp % 4 * 16 + g;
    float top[2] = {NO_KEY, NO_KEY}, total[2] = {0, 0}, shrink[2];
    float o[D / COLUMNS][COLUMNS / 2], s[KEYS / 2];
    u32 p[KEYS / 16][4];
#pragma unroll
    for (int i = 0; i < D / 2; i++) o[i / (COLUMNS / 2)][i % (COLUMNS / 2)] = 0;
    auto soften = [&](int tile) {  // logits to probabilities; whether the sums are to shrink
      const int token = start + tile * KEYS;
      if (token + KEYS - 1 > min(earliest, end - 1) || token < max(lowest, latest + 1 - window))
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
          const int key = token + i / 4 * 8 + 2 * c + i % 2, position = before + (m + i / 2 % 2 * 8) / GROUP;
          if (key > min(position, end - 1) || key < max(lowest, position + 1 - window)) s[i] = NO_KEY;
        }
      float most[2] = {NO_KEY, NO_KEY};
#pragma unroll
      for (int i = 0; i < KEYS / 2; i++) most[i / 2 % 2] = fmaxf(most[i / 2 % 2], s[i]);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
        most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2)) * scale;
      }
      const bool grown = __any_sync(~0u, most[0] > top[0] + SLACK || most[1] > top[1] + SLACK);
      if (grown)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const float higher = fmaxf(top[r], most[r]);
          shrink[r] = exp2_of(top[r] - shift_of(higher));
          top[r] = higher, total[r] *= shrink[r];
        }
      const float shift[2] = {shift_of(top[0]), shift_of(top[1])};
#pragma unroll
      for (int i = 0; i < KEYS / 2; i++) {
        s[i] = exp2_of(s[i] * scale - shift[i / 2 % 2]);
        total[i / 2 % 2] += s[i];
      }
      return grown;
    };
    auto shrink_sums = [&] {
#pragma unroll
      for (int i = 0; i < D / 2; i++) o[i / (COLUMNS / 2)][i % (COLUMNS / 2)] *= shrink[i / 2 % 2];
    };
    auto as_operands = [&] {
#pragma unroll
      for (int i = 0; i < KEYS / 4; i++) p[i / 4][i % 4] = pack2<KIND == 1>(s[2 * i], s[2 * i + 1]);
    };
    auto leave = [&](int kind, int stage) {
      if (lane == 0) arrive(empty(kind, stage));
    };

    await(full(0, 0), 0);
    begin_products();
    multiply_keys(s, 0);
    await_products<0>();
    leave(0, 0);
    soften(0);
    as_operands();
    for (int tile = 1; tile < count; tile++) {
      const int stage = tile % STAGES, stage_before = (tile - 1) % STAGES;
      await(full(0, stage), tile / STAGES & 1);
      begin_products();
      multiply_keys(s, stage);
      await_values(tile - 1);
      begin_products();
      multiply_values(o, p, stage_before);
      await_products<1>();
      leave(0, stage);
      const bool grown = soften(tile);
      if (total[0] + total[1] < 0) arrive(empty(0, stage));  // never; or compilers put the powers off until the sums are there
      await_products<0>();
      leave(1, stage_before);
      if (grown) shrink_sums();
      as_operands();
    }
    await_values(count - 1);
    begin_products();
    multiply_values(o, p, (count - 1) % STAGES);
    await_products<0>();

    meet(3, 128 * WARPGROUPS);  // all are done with keys and values, in whose place the sums are laid out by rows
    float* rows_of_warp = (float*)shared + warp * 16 * D;
    float2* ends_of_warp = (float2*)(shared + BLOCK_QUERIES * D * 4) + warp * 16;  // each row's largest logit and total
#pragma unroll
    for (int r = 0; r < 2; r++) {
      total[r] += __shfl_xor_sync(~0u, total[r], 1);
      total[r] += __shfl_xor_sync(~0u, total[r], 2);
      const int in_warp = g + 8 * r;
      if (c == 0) ends_of_warp[in_warp] = make_float2(top[r], total[r]);
#pragma unroll
      for (int n = 0; n < D / 8; n++) {
        const float* pair = &o[n / (COLUMNS / 8)][n % (COLUMNS / 8) * 4 + 2 * r];
        *(float2*)(rows_of_warp + in_warp * D + (8 * n + 2 * c ^ g * 8)) = make_float2(pair[0], pair[1]);
      }
    }
    __syncwarp();
    const Output output = {gate, out, gate_token_stride, gate_head_stride, item.first_token, head};
    constexpr int BATCH = 8;  // gates on their way at once
    for (int first = 0; first < D / 8; first += BATCH) {
      uint2 gates[BATCH];
#pragma unroll
      for (int j = 0; j < BATCH; j++) {
        const int i = 32 * (first + j) + lane, query = first_query + warp * 16 + i / (D / 4);
        if (query < queries && item.parts == 1) gates[j] = output.load_gate(query, i % (D / 4));
      }
#pragma unroll
      for (int j = 0; j < BATCH; j++) {
        const int i = 32 * (first + j) + lane, in_warp = i / (D / 4), f = i % (D / 4), query = first_query + warp * 16 + in_warp;
        if (query >= queries) continue;
        float4 y = *(const float4*)(rows_of_warp + in_warp * D + (4 * f ^ in_warp % 8 * 8));
        const float2 ends = ends_of_warp[in_warp];
#if ITEMS
        if (item.parts > 1) {
          const long long at = ((long long)blockIdx.y * KV + head) * most_queries + query;
          y.x *= 1 / OUT_UNIT, y.y *= 1 / OUT_UNIT, y.z *= 1 / OUT_UNIT, y.w *= 1 / OUT_UNIT;  // as add_items takes them
          *((float4*)(partial + at * D) + f) = y;
          if (f == 0) tops[at] = ends.x, totals[at] = ends.y;
          continue;
        }
#endif
        output.store(y, 1 / ends.y, gates[j], query, f);
      }
    }
  }
}
