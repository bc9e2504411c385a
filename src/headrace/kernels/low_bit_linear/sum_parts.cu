// y [n] = the sum of float32 parts [parts, n], added in their order. n is a multiple of 4.
extern "C" __global__ void __launch_bounds__(256) sum_parts(
    const float4* __restrict__ parts, uint2* __restrict__ y, int count, long long vectors) {
  let_next_kernel_start();
  await_previous_kernel();
  const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
  if (i >= vectors) return;
  float4 v = parts[i];
  for (int p = 1; p < count; p++) {
    const float4 more = parts[p * vectors + i];
    v.x += more.x, v.y += more.y, v.z += more.z, v.w += more.w;
  }
  y[i] = make_uint2(pack2(v.x, v.y), pack2(v.z, v.w));
}
