// Second of a prefill's two kernels: all chunks of a row, one after the other, for 64 value dimensions of a head. X [64, D], that part of
// S^T, stays in the registers of one warpgroup:
//
//   d = M (V - e^c K S);  O = e^c Q S + P d;  S <- e^(c of the last) S + (e^(c of the last - c) K)^T d
//
// in transposed form, by wgmma whose left operand is in registers: each product's sums are the next one's left operand. A warp of the
// other warpgroup has the copy engine bring chunks, STAGES of them at once. Grid [2 HEADS, rows]. `add_rows` and `add_columns` are written
// by the host.
#define STAGE_BYTES (UNIT_BYTES + 3 * TILE_BYTES)  // keys, queries, values of these dimensions, M, P
#define FACTORS_AT (STAGES * STAGE_BYTES)
#define OUT_AT (FACTORS_AT + STAGES * FACTOR_BYTES)  // of a warp: 64 tokens of 16 numbers
#define BARRIERS_AT (OUT_AT + 4 * 2048)
#if WIDE_STATE
typedef float state_type;
#else
typedef u16 state_type;
#endif

__device__ __forceinline__ float2 load_pair(const state_type* at) {
#if WIDE_STATE
  return *(const float2*)at;
#else
  const u32 pair = *(const u32*)at;
  return {low_half(pair), high_half(pair)};
#endif
}
__device__ __forceinline__ void store_pair(state_type* at, float low, float high) {
#if WIDE_STATE
  *(float2*)at = {low, high};
#else
  *(u32*)at = pack_half(low, high);
#endif
}

extern "C" __global__ void __launch_bounds__(256, 1) walk(
    const char* __restrict__ units, const char* __restrict__ heads, u16* __restrict__ out, state_type* states,
    const long long* __restrict__ slots, const int* __restrict__ row_table) {
  extern __shared__ __align__(1024) uint4 memory[];
  char* const shared = (char*)memory;
  const u32 shared_at = shared_address(shared), full = shared_at + BARRIERS_AT, empty = full + 8 * STAGES;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x / 2, part = blockIdx.x % 2;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) make_barrier(full + 8 * i, 1), make_barrier(empty + 8 * i, 128);
    show_barriers();
  }
  __syncthreads();
  let_next_kernel_start();
  await_previous_kernel();
  const int* entry = row_table + 4 * blockIdx.y;
  const int start = entry[1], tokens = entry[2], piece = entry[3], count = (tokens + SIZE - 1) / SIZE;
  if (!count) return;

  if (warp >= 4) {
    if (threadIdx.x == 128) {
      const char* unit = units + ((long long)piece * KEY_HEADS + head / GROUP) * UNIT_BYTES;
      const char* record = heads + ((long long)piece * HEADS + head) * HEAD_BYTES;
      for (int i = 0; i < count; i++, unit += KEY_HEADS * UNIT_BYTES, record += HEADS * HEAD_BYTES) {
        const int stage = i % STAGES;
        const u32 to = shared_at + stage * STAGE_BYTES, barrier = full + 8 * stage;
        await(empty + 8 * stage, i / STAGES + 1 & 1);
        expect_bytes(barrier, STAGE_BYTES + FACTOR_BYTES);
        bring(to, unit, UNIT_BYTES, barrier);
        bring(to + UNIT_BYTES, record + part * TILE_BYTES, TILE_BYTES, barrier);
        bring(to + UNIT_BYTES + TILE_BYTES, record + 2 * TILE_BYTES, 2 * TILE_BYTES, barrier);
        bring(shared_at + FACTORS_AT + stage * FACTOR_BYTES, record + 4 * TILE_BYTES, FACTOR_BYTES, barrier);
      }
    }
    return;
  }
  const int g = lane / 4, c = lane % 4;
  state_type* const state = states + ((slots[entry[0]] * HEADS + head) * D + 64 * part + 16 * warp + g) * D + 2 * c;
  float x[64];
#pragma unroll
  for (int i = 0; i < 64; i += 2) {
    const float2 pair = load_pair(state + i / 2 % 2 * 8 * D + i / 4 * 8);
    x[i] = pair.x, x[i + 1] = pair.y;
  }
  const u64 swizzled = 1ull << 62 | 64ull << 32;  // 128-byte swizzle, 1024 bytes from 8 rows to the next 8
  const u64 rows_at = shared_at >> 4 | 1ull << 16 | swizzled, columns_at = shared_at >> 4 | (u64)(2 * TILE_BYTES / 16) << 16 | swizzled;
  const u32 own_out = shared_at + OUT_AT + warp * 2048;
  float known[64], d[32], sums[32];  // X K^T and X Q^T; d; O
  u32 x_parts[8][4], left[4][4];

  auto factors_of = [&](int stage) { return (const float2*)(shared + FACTORS_AT + stage * FACTOR_BYTES) + c; };
  auto store_outputs = [&](int i) {  // of a chunk whose products are there
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      u32 pairs[4];
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const int at = 4 * n + 2 * k;
        pairs[k] = pack_half(sums[at], sums[at + 1]);
      }
      const int token = 8 * n + lane / 16 * 8 + lane % 8, half = lane / 8 % 2 ^ token / 4 % 2;  // no bank is met twice
      store_transposed(own_out + token * 32 + half * 16, pairs[0], pairs[1], pairs[2], pairs[3]);
    }
    __syncwarp();
    arrive(empty + 8 * (i % STAGES));
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int token = 16 * j + lane / 2, in_row = SIZE * i + token;
      const uint4 eight = *(const uint4*)(shared + OUT_AT + warp * 2048 + token * 32 + (lane % 2 ^ token / 4 % 2) * 16);
      u16* const to = out + ((long long)(start + in_row) * HEADS + head) * D + 64 * part + 16 * warp + lane % 2 * 8;
      if (in_row < tokens) *(uint4*)to = eight;
    }
  };

  auto multiply_keys = [&](int i) {  // with X as it is; of no chunk if there is none left, lest products diverge
#pragma unroll
    for (int k = 0; k < 32; k++) x_parts[k / 4][k % 4] = pack_half(x[2 * k], x[2 * k + 1]);
    if (i < count) await(full + 8 * (i % STAGES), i / STAGES & 1);
    const u64 keys = rows_at + i % STAGES * (STAGE_BYTES / 16);
    begin_products();
#pragma unroll
    for (int k = 0; k < 8; k++) add_rows(known, x_parts[k], keys + (k / 4 * 2 * TILE_BYTES + k % 4 * 32) / 16, k);
    commit_products();
  };

  multiply_keys(0);
#pragma unroll 1
  for (int i = 0; i < count; i++) {
    const int stage = i % STAGES;
    const u64 key_columns = columns_at + stage * STAGE_BYTES / 16;
    const u64 solve = rows_at + (stage * STAGE_BYTES + UNIT_BYTES + TILE_BYTES) / 16, p_rows = solve + TILE_BYTES / 16;
    const float2 *past = factors_of(stage), *rest = past + SIZE / 2;
    const float all = past[SIZE / 2 - 1 - c].y;
    await_products<0>();
#pragma unroll
    for (int k = 0; k < 64; k++) is_there(known[k]);
#pragma unroll
    for (int s = 0; s < 4; s++) {
      u32 v[4];
      const int token = 16 * s + lane % 8 + lane / 16 * 8;
      load_transposed(v, shared + stage * STAGE_BYTES + UNIT_BYTES + place(token, 2 * warp + lane / 8 % 2));
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const int at = 8 * s + 2 * k;
        const float2 factor = past[4 * (2 * s + k / 2)];
        left[s][k] = pack_half(low_half(v[k]) - factor.x * known[at], high_half(v[k]) - factor.y * known[at + 1]);
      }
    }
#pragma unroll
    for (int k = 0; k < 64; k++) x[k] *= all;
    begin_products();
#pragma unroll
    for (int s = 0; s < 4; s++) add_rows(d, left[s], solve + 2 * s, s);
    commit_products();
#pragma unroll
    for (int k = 0; k < 32; k += 2) {
      const float2 factor = past[4 * (k / 4)];
      sums[k] = known[32 + k] * factor.x, sums[k + 1] = known[33 + k] * factor.y;
    }
    await_products<0>();
#pragma unroll
    for (int k = 0; k < 32; k++) is_there(d[k]);
    u32 learned[4][4];
#pragma unroll
    for (int k = 0; k < 16; k++) {
      const float2 factor = rest[4 * (k / 2)];
      left[k / 4][k % 4] = pack_half(d[2 * k], d[2 * k + 1]);
      learned[k / 4][k % 4] = pack_half(d[2 * k] * factor.x, d[2 * k + 1] * factor.y);
    }
    begin_products();
#pragma unroll
    for (int s = 0; s < 4; s++) add_columns(x, learned[s], key_columns + 128 * s);
    commit_products();
#pragma unroll
    for (int s = 0; s < 4; s++) add_rows(sums, left[s], p_rows + 2 * s, 1);
    commit_products();
    await_products<1>();
#pragma unroll
    for (int k = 0; k < 64; k++) is_there(x[k]);
    multiply_keys(i + 1);
    await_products<1>();
#pragma unroll
    for (int k = 0; k < 32; k++) is_there(sums[k]);
    store_outputs(i);
  }
  await_products<0>();
#pragma unroll
  for (int i = 0; i < 64; i += 2) store_pair(state + i / 2 % 2 * 8 * D + i / 4 * 8, x[i], x[i + 1]);
}
