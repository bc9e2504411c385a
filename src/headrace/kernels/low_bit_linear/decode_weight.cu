// Tiles of weights as plain rows in the activations' type: [tiles * 16, inputs], for a matrix product by the library.
// A warp decodes 16 outputs and CHUNK inputs, and turns them in shared memory into rows. blockIdx.y is the tile, counted from the first
// that the pointers name.
#define WARPS 8
#define ROW_WORDS (CHUNK / 2 + 4)  // from one row to the next in shared memory, so that neither way has bank conflicts

extern "C" __global__ void __launch_bounds__(32 * WARPS) decode_weight(
    const uint4* __restrict__ packed, const u32* __restrict__ scale, const u32* __restrict__ zero, u16* __restrict__ out, int inputs) {
  __shared__ uint4 turned[WARPS][16 * ROW_WORDS / 4];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4, chunks = inputs / CHUNK;
  const int chunk = blockIdx.x * WARPS + warp;
  if (chunk >= chunks) return;
  const long long at = (long long)blockIdx.y * chunks + chunk;
  uint4 w[VECTORS];
#pragma unroll
  for (int v = 0; v < VECTORS; v++) w[v] = __ldcs(packed + (at * VECTORS + v) * 32 + lane);
  u32 z[2];
  float scales[2];
  symmetric_points(z);
#pragma unroll
  for (int step = 0; step < STEPS; step++) {
    if (step % GROUP_STEPS == 0) {
      const int group = GROUP ? step / GROUP_STEPS : 0;
      if (ZEROS) zero_points(z, __ldg(zero + (at * GROUPS + group) * 2 + g / 4) >> 8 * (g % 4));
      const u32 s = __ldg(scale + (GROUP ? (at * GROUPS + group) * 8 : (long long)blockIdx.y * 8) + g);
      scales[0] = low_number(s, SCALE_BF16), scales[1] = high_number(s, SCALE_BF16);
    }
    u32 a[4];
    decode(a, w, step, z);
#pragma unroll
    for (int i = 0; i < 4; i++) {  // row g + 8 (i % 2), inputs 16 step + 8 (i / 2) + 2 c, + 1
      const float s = scales[i % 2];
      ((u32*)turned[warp])[(g + i % 2 * 8) * ROW_WORDS + step * 8 + i / 2 * 4 + c] =
          pack2(low_number(a[i], BF16) * s, high_number(a[i], BF16) * s);
    }
  }
  __syncwarp();
  await_previous_kernel();  // it may still read what is written here
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int row = i * 2 + lane / 16, piece = lane % 16;
    *(uint4*)(out + ((long long)blockIdx.y * 16 + row) * inputs + chunk * CHUNK + piece * 8) = turned[warp][row * (ROW_WORDS / 4) + piece];
  }
}
