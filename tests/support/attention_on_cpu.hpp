// What paged_attention's prelude.cuh does in assembly, in C++ for cuda_on_cpu.hpp: for products in fp16.
using std::max;
using std::min;
typedef unsigned long long u64;
struct alignas(16) int4 { int x, y, z, w; };
#define __cvta_generic_to_shared(p) ((const char*)(p) - (const char*)memory)  // the distance from where dynamic memory begins
static float2 make_float2(float x, float y) { return {x, y}; }
static Place gridDim;
static void launch_all(int columns, int rows, std::function<void()> kernel) {
  body = kernel, gridDim = {columns, rows, DEPTH};
  for (int z = 0; z < DEPTH; z++)
    for (int y = 0; y < rows; y++)
      for (int x = 0; x < columns; x++) blockIdx = {x, y, z}, memset(memory, 0xFF, sizeof memory), run_block();
}
#define launch launch_all

static float __int_as_float(u32 bits) { return __uint_as_float(bits); }
static float half_to_float(u32 bits) { return from_half(bits & 0xFFFF); }
static float exp2_of(float x) { return exp2f(x); }
template <bool TO_BF16> static u32 pack2(float low, float high) { return TO_BF16 ? pack_bfloat(low, high) : pack_half(low, high); }
template <int FIRST> static u32 decode2(u32 w) {  // int8, its sign bit flipped; e4m3 / 256
  u32 d = 0;
  for (int i = 0; i < 2; i++) {
    const u32 code = w >> 8 * (FIRST + i) & 0xFF;
    const u32 e4m3 = (code & 0x80) << 8 | (code & 0x7F) << 7;
    d |= (KIND == 2 ? to_half((float)code - 128) : e4m3) << 16 * i;
  }
  return d;
}

#ifdef PARTS
static void await_part(int part) {
  static Meeting meetings[PARTS];
  meetings[part].hold(32 * TILES, [] {});
}
#endif
static void commit_copies() {}
template <int PENDING> static void await_copies() {}
static void __threadfence() {}
static int atomicAdd(int* counter, int more) { const int before = *counter; *counter += more; return before; }
template <class T> static T __ldcg(const T* from) { return *from; }

static int __shfl_sync(u32, int x, int source) { return (int)__float_as_uint(from_lane(__uint_as_float((u32)x), source & 31)); }
static u32 __shfl_sync(u32 lanes, u32 x, int source) { return (u32)__shfl_sync(lanes, (int)x, source); }
static bool __any_sync(u32, bool mine) {
  Warp& w = warp();
  w.in[lane()][0] = mine;
  w.hold(32, [&w] {
    u32 any = 0;
    for (int l = 0; l < 32; l++) any |= w.in[l][0];
    for (int l = 0; l < 32; l++) w.out[l][0] = any;
  });
  return w.out[lane()][0];
}
static bool __syncthreads_or(bool mine) {
  static bool found;
  static bool result;
  found |= mine;
  everybody.hold(BLOCK, [] { result = found, found = false; });
  return result;
}
static u32 transposed(u32 pair) {
  Warp& w = warp();
  w.in[lane()][0] = pair;
  w.hold(32, [&w] {
    for (int l = 0; l < 32; l++) {
      const int row = l % 4 * 2, column = l / 4;
      u32 d = 0;
      for (int i = 0; i < 2; i++) d |= (w.in[(row + i) * 4 + column / 2][0] >> 16 * (column % 2) & 0xFFFF) << 16 * i;
      w.out[l][0] = d;
    }
  });
  return w.out[lane()][0];
}
