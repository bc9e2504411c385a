// What low_bit_linear's prelude.cuh does in assembly, in C++ for cuda_on_cpu.hpp: for fp16 activations, one block after the other.
static Place gridDim;
#define launch(columns, rows, ...) (gridDim = {columns, rows, 1}, launch(columns, rows, __VA_ARGS__))
using std::max;
using std::min;
static u32 half_of(u32 pair, int i) { return pair >> 16 * i & 0xFFFF; }
static u32 subtract2(u32 a, u32 b) { return pack_half(from_half(half_of(a, 0)) - from_half(half_of(b, 0)), from_half(half_of(a, 1)) - from_half(half_of(b, 1))); }
static u32 pack2(float low, float high) { return pack_half(low, high); }
static float half_to_float(u32 bits) { return from_half(bits); }
template <u32 MASK> static u32 select_or(u32 word, u32 bits) { return word & MASK | bits; }
static void load_b(u32 (&b)[4], const void* row) { load_matrices(b, row); }
static void commit_copies() {}
template <int PENDING> static void await_copies() {}
static void raise(u32* flag) { *flag = 1; }
static void await_and_lower(u32* flag) {
  if (*flag != 1) fail("a block waits for one that comes later");
  *flag = 0;
}
template <class T> static T __ldg(const T* from) { return *from; }
template <class T> static T __ldcg(const T* from) { return *from; }
#define __expf(x) expf(x)
#define __cvta_generic_to_shared(p) (size_t)(p)
