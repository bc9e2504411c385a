// Rows whose keys were split among several items of many_queries: their sums added. Grid [KV, rows, blocks of 4 queries].
extern "C" __global__ void __launch_bounds__(256) add_items(
    const float* __restrict__ partial, const float* __restrict__ tops, const float* __restrict__ totals, const u16* __restrict__ gate,
    u16* __restrict__ out, const int* __restrict__ row_offsets, const int* __restrict__ row_items, long long gate_token_stride,
    long long gate_head_stride, int most_queries) {
  let_next_kernel_start();
  await_previous_kernel();
  const int row = blockIdx.y, first_item = row_items[2 * row], parts = row_items[2 * row + 1], first_token = row_offsets[row];
  const int count = (row_offsets[row + 1] - first_token) * GROUP - 4 * (int)blockIdx.z;
  if (parts <= 1 || count <= 0) return;
  const Output output = {gate, out, gate_token_stride, gate_head_stride, first_token, (int)blockIdx.x};
  add_parts<256>(output, partial, tops, totals, first_item, parts, 4 * blockIdx.z, min(count, 4), most_queries);
}
