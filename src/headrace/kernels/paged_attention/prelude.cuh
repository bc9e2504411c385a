// What the attention kernels share, after primitives.cuh.
//
// Macros that the host defines: D (of a head: 128 or 256), KIND (of the pools: 0 fp16, 1 bf16, 2 int8, 3 e4m3; the products are in bf16 for
// 1, in fp16 for the others), BF16 (queries, gate and output: 1 bf16, 0 fp16), KV (key heads), GROUP (query heads of a key head), PAGE
// (tokens of a page, a multiple of 16).
//
// Keys are the A operand of S^T = K Q^T, and values that of O^T = V^T P^T: a query is a column of m16n8k16, so that few queries waste
// little. Lane 4 g + c has rows g and g + 8 of A and of the sums, columns 2 c and 2 c + 1 of the sums, and column g of B. Dimensions may be
// taken in any order if keys and queries agree: a lane's numbers are those that lie side by side in its 16-byte vectors.

typedef unsigned long long u64;

#define EIGHT_BITS (KIND >= 2)
#define ROW (EIGHT_BITS ? D : 2 * D)             // bytes of a vector in a pool
#define PIECES (ROW / 16)                        // of 16 bytes
#define STEPS (D / 16)                           // mma steps over a head
#define UNIT (KIND == 3 ? 256.0f : 1.0f)         // codes of e4m3 become 1/256 of their value
#define GAIN (EIGHT_BITS ? 64.0f : 1.0f)         // of the probabilities, lest they vanish in fp16 when scaled
#define OUT_UNIT (UNIT / GAIN)                   // what makes values of the sums
#define SLACK 4.0f                               // sums are shrunk when a logit is this much above the largest one that they know of
#define NO_KEY __int_as_float(0xff800000)        // minus infinity

__device__ __forceinline__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// What is subtracted before powers are taken: nothing is infinity less itself.
__device__ __forceinline__ float shift_of(float top) { return top == NO_KEY ? 0.0f : top; }

template <bool TO_BF16> __device__ __forceinline__ u32 pack2(float low, float high) {
  u32 d;
  if (TO_BF16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
__device__ __forceinline__ float half_to_float(u32 bits) {
  float f;
  asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(f) : "r"(bits));
  return f;
}
template <bool IS_BF16> __device__ __forceinline__ float2 unpack2(u32 pair) {
  if (IS_BF16) return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
  return make_float2(half_to_float(pair & 0xFFFFu), half_to_float(pair >> 16));
}
__device__ __forceinline__ u32 as_operand(u32 pair) {  // two numbers of a query in the products' type
  if ((KIND == 1) == BF16) return pair;
  const float2 x = unpack2<BF16>(pair);
  return pack2<KIND == 1>(x.x, x.y);
}

__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if KIND == 1
#define TYPE "bf16"
#else
#define TYPE "f16"
#endif
  asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 matrices of 16-bit numbers, transposed. Each lane names a row of one.
__device__ __forceinline__ void load_transposed(u32 (&m)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(shared_address(row)) : "memory");
}

// An 8x8 matrix of 16-bit numbers that a warp holds, two a lane, transposed.
__device__ __forceinline__ u32 transposed(u32 pair) {
  u32 d;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(pair));
  return d;
}

// Where a 16-byte piece of a key's vector lies within its row in shared memory, so that lanes that read at once meet no bank twice.
__device__ __forceinline__ int key_place(int key, int piece) { return key * PIECES + (piece ^ (key & 1) << 2); }
__device__ __forceinline__ int value_place(int key, int piece) { return key * PIECES + (piece ^ (key & (EIGHT_BITS ? 6 : 7))); }

// The pair of 16-bit numbers that two code bytes stand for, given as bytes FIRST and FIRST + 1 of w. int8 with its sign bit flipped is
// the low half of the fp16 number 1024 + 128 + it; e4m3's fields are moved to fp16's places.
template <int FIRST> __device__ __forceinline__ u32 decode2(u32 w) {
  u32 d;
  if (KIND == 2) {
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(__byte_perm(w, 0x64646464u, FIRST ? 0x4342 : 0x4140)), "r"(0x64806480u));
  } else {
    const u32 high = __byte_perm(w, 0, FIRST ? 0x3424 : 0x1404), shifted = high >> 1 & 0x3f803f80u;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(high), "n"(0x80008000u), "r"(shifted));
  }
  return d;
}
__device__ __forceinline__ u32 flipped(u32 codes) { return KIND == 2 ? codes ^ 0x80808080u : codes; }

// The A operand of one step over the dimensions from the words of keys g and g + 8: four codes of each.
__device__ __forceinline__ void decode_keys(u32 (&a)[4], u32 low, u32 high) {
  low = flipped(low), high = flipped(high);
  a[0] = decode2<0>(low), a[1] = decode2<0>(high), a[2] = decode2<2>(low), a[3] = decode2<2>(high);
}
// The A operand of a tile of dimensions, from words of keys 2 c, 2 c + 1, 2 c + 8, 2 c + 9: bytes 2 T and 2 T + 1 of each are the lane's
// dimensions, in rows g and g + 8.
template <int T> __device__ __forceinline__ void decode_values(u32 (&a)[4], const u32 (&words)[4]) {
  const u32 near = flipped(__byte_perm(words[0], words[1], T ? 0x7362 : 0x5140)), far = flipped(__byte_perm(words[2], words[3], T ? 0x7362 : 0x5140));
  a[0] = decode2<0>(near), a[1] = decode2<2>(near), a[2] = decode2<0>(far), a[3] = decode2<2>(far);
}

// An item: keys first ... end - 1 of a row, one of `parts`, of which first_item is the first; the row's tokens are first_token ... and its
// last one sees `length` keys.
struct Item {
  int row, first, end, parts, first_token, tokens, length, first_item;
};
__device__ __forceinline__ Item load_item(const int* items) {
  const int4 a = ((const int4*)items)[2 * blockIdx.y], b = ((const int4*)items)[2 * blockIdx.y + 1];
  return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}
// Whether query m of the row (tokens x GROUP of them) sees a key of the item.
__device__ __forceinline__ bool sees(const Item& item, int window, int m, int token) {
  const int last = item.length - item.tokens + m / GROUP;
  return token <= last && token < item.end && token > last - window && token >= item.first;
}
// Whether 16 keys from `token` on are seen by all queries.
__device__ __forceinline__ bool all_seen(const Item& item, int window, int token, int keys) {
  return token + keys - 1 <= min(item.length - item.tokens, item.end - 1) && token >= max(item.first, item.length - window);
}

// The gate of four numbers of query m, from 4 f on, and what they become with it: 16 bits each.
struct Output {
  const u16* gate;
  u16* out;
  long long gate_token_stride, gate_head_stride;
  int first_token, head;

  __device__ __forceinline__ uint2 load_gate(int m, int f) const {
    const long long at = (first_token + m / GROUP) * gate_token_stride + (head * GROUP + m % GROUP) * gate_head_stride + 4 * f;
    return gate ? *(const uint2*)(gate + at) : make_uint2(0, 0);
  }
  __device__ __forceinline__ void store(float4 y, float unit, uint2 gates, int m, int f) const {
    y.x *= unit, y.y *= unit, y.z *= unit, y.w *= unit;
    if (gate) {
      const float2 a = unpack2<BF16>(gates.x), b = unpack2<BF16>(gates.y);
      const float to_log2 = -1.4426950408889634f;
      y.x /= 1 + exp2_of(a.x * to_log2), y.y /= 1 + exp2_of(a.y * to_log2);
      y.z /= 1 + exp2_of(b.x * to_log2), y.w /= 1 + exp2_of(b.y * to_log2);
    }
    const long long at = ((long long)(first_token + m / GROUP) * (KV * GROUP) + head * GROUP + m % GROUP) * D + 4 * f;
    *(uint2*)(out + at) = make_uint2(pack2<BF16>(y.x, y.y), pack2<BF16>(y.z, y.w));
  }
};

// Adds the sums of all items of a row for its queries m ... m + count - 1, in the items' order, by all threads of a block. Sums are
// weighted by how far their largest logit lies below the row's.
template <int THREADS> __device__ __forceinline__ void add_parts(
    const Output& output, const float* partial, const float* tops, const float* totals, int first_item, int parts, int m, int count,
    int most_queries) {
  constexpr int AT_ONCE = 16;
  const long long stride = (long long)KV * most_queries, first = ((long long)first_item * KV + output.head) * most_queries + m;
  for (int i = threadIdx.x; i < count * (D / 4); i += THREADS) {
    const int n = i / (D / 4), f = i % (D / 4);
    const uint2 gates = output.load_gate(m + n, f);
    float top = NO_KEY, total = 0;
    float4 y = make_float4(0, 0, 0, 0);
    for (int p = 0; p < parts; p += AT_ONCE) {
      float part_tops[AT_ONCE], part_totals[AT_ONCE], most = top;
      float4 sums[AT_ONCE];
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) {
        const long long at = first + min(p + k, parts - 1) * stride + n;
        part_tops[k] = p + k < parts ? __ldcg(tops + at) : NO_KEY;
        part_totals[k] = __ldcg(totals + at);
        sums[k] = __ldcg((const float4*)(partial + at * D) + f);
        most = fmaxf(most, part_tops[k]);
      }
      const float shift = shift_of(most), shrink = exp2_of(top - shift);
      top = most, total *= shrink, y.x *= shrink, y.y *= shrink, y.z *= shrink, y.w *= shrink;
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) {
        const float weight = exp2_of(part_tops[k] - shift);
        total += weight * part_totals[k];
        y.x += weight * sums[k].x, y.y += weight * sums[k].y, y.z += weight * sums[k].z, y.w += weight * sums[k].w;
      }
    }
    output.store(y, OUT_UNIT / total, gates, m + n, f);
  }
}
