// What a product is told of the norms around it.

// Parts of the sums of squares of rows, of `count` parts each.
struct Squares {
  float* first;
  int count, row_step, part_step;

  __device__ __forceinline__ float* at(int row, int part) const { return first + row * row_step + part * part_step; }
};
// With NORMED x is what a product leaves with ADDED: a row of a product is to be multiplied by 1 / sqrt(mean + eps), the squares being of
// that of which this is the mean.
struct Normed {
  Squares squares;
  float eps;
};
// With ADDED total = residual + x W^T, rounded to its type, and y = total (weight + offset), which an RMS norm's factors of the rows are
// still missing from; these are made of the squares of total.
struct Added {
  const u16* residual;
  const float* weight;
  u16* total;
  Squares squares;
  float offset;
};

__device__ __forceinline__ float sum_of_lanes(float x, int lanes) {
#pragma unroll
  for (int far = 16; far; far /= 2)
    if (far < lanes) x += __shfl_xor_sync(~0u, x, far);
  return x;
}
// Factors of a norm's rows from `first` on: each of `warps` warps makes some.
__device__ __forceinline__ void row_factors(float* factors, const Normed& normed, int first, int rows, int inputs, int warp, int warps) {
  const int lane = threadIdx.x % 32;
  for (int r = warp; r < rows; r += warps) {
    float sum = 0;
#pragma unroll 10
    for (int i = lane; i < normed.squares.count; i += 32) sum += __ldcg(normed.squares.at(first + r, i));
    sum = sum_of_lanes(sum, 32);
    if (lane == 0) factors[r] = rsqrtf(sum / inputs + normed.eps);
  }
}
