// A warp's scales and zero points of a group as a fragment's registers want them: i % 2 is the output, g or g + 8.
//
// In bf16 the codes are not made numbers first. A register's low 4 bits q are the number q 2^-133, the next four q 2^-129; one fma makes
// them (q - zero) scale 2^-32, rounded once, and the sums are multiplied by 2^32 when they are complete.
#define SMALL (BF16 && BITS == 4)
#define SMALL_INVERSE 4294967296.f
#define POWERS 0x70007200u  // 2^97, 2^101: times those numbers it is q 2^-32
#define OFFSET 0xB100B100u  // -8 2^-32

__device__ __forceinline__ u32 add_product2(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// One number twice, in a way that leaves it to the instruction that reads it.
__device__ __forceinline__ u32 both_low(u32 pair) {
  u32 d;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low}; }" : "=r"(d) : "r"(pair));
  return d;
}
__device__ __forceinline__ u32 both_high(u32 pair) {
  u32 d;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high}; }" : "=r"(d) : "r"(pair));
  return d;
}

struct GroupScale {
  u32 factor[2], offset[2], scale[2];

  __device__ __forceinline__ void set(u32 pair, u32 zero_byte) {
    if (GROUP && SCALE_BF16 != BF16) pair = pack2(low_number(pair, SCALE_BF16), high_number(pair, SCALE_BF16));
    const u32 scaled = GROUP && !ZEROS ? multiply2(pair, POWERS) : POWERS;
    u32 less = GROUP && !ZEROS ? multiply2(pair, OFFSET) : OFFSET;
    if (ZEROS) less = multiply2(zero_byte & 15 | (zero_byte & 0xF0) << 16, POWERS ^ 0x80008000u);
    if (SMALL) {
      factor[0] = both_low(scaled), factor[1] = both_high(scaled), offset[0] = both_low(less), offset[1] = both_high(less);
    } else if (ZEROS) {
      zero_points(offset, zero_byte);
    } else {
      symmetric_points(offset);
    }
    scale[0] = both_low(pair), scale[1] = both_high(pair);
  }
  __device__ __forceinline__ void decode_step(u32 (&a)[4], const uint4* w, int step) const {
    if (SMALL) {
      const uint4 v = w[step / 4];
      const u32 word = step % 4 == 0 ? v.x : step % 4 == 1 ? v.y : step % 4 == 2 ? v.z : v.w, upper = word >> 8;
      a[0] = add_product2(word & 0x000F000Fu, factor[0], offset[0]);
      a[1] = add_product2(word & 0x00F000F0u, factor[1], offset[1]);
      a[2] = add_product2(upper & 0x000F000Fu, factor[0], offset[0]);
      a[3] = add_product2(upper & 0x00F000F0u, factor[1], offset[1]);
    } else {
      decode(a, w, step, offset);
    }
    if (GROUP && (ZEROS || !SMALL))
#pragma unroll
      for (int i = 0; i < 4; i++) a[i] = multiply2(a[i], scale[i % 2]);
  }
};
