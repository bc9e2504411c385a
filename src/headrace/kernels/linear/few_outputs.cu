// y = x W^T for plain W of few outputs, see low_bit_linear/few_outputs.cuh. blockIdx: 16 outputs, part, block of X_ROWS rows. Macros
// besides the prelude's: WARPS, X_ROWS (8 or 16), NORMED (low_bit_linear/around.cuh).
extern "C" __global__ void __launch_bounds__(32 * WARPS) few_outputs(
    const uint4* __restrict__ weight, const u16* __restrict__ x, u16* __restrict__ y, float* sums, u32* raised, int its_rows, int outputs,
    int inputs, long long x_stride, Normed normed) {
  extern __shared__ __align__(128) uint4 shared[];
  __shared__ float factors[X_ROWS];
  const FewOutputs of = {weight, y, sums, raised, outputs, (int)gridDim.y};
  few_outputs_block<X_ROWS>(shared, factors, of, normed, x, blockIdx.x, blockIdx.y, blockIdx.z, its_rows, inputs, x_stride);
}
