// S and tail of slots source[i] after the first count[i] drafts of their rings, to slots target[i]: a block for one value head
// of one pair of slots (GROUP is 1). The first value head of a key head moves that one's channels.

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) fold(
    u16* tails, void* states, const u16* ring_keys, const u16* ring_deltas, const float* ring_decays, const u16* ring_inputs,
    const int* parity, const long long* source, const int* counts, const long long* target) {
  __shared__ __align__(16) Drafts drafts;
  const Heads heads;
  let_next_kernel_start();
  await_previous_kernel();
  const int from = (int)source[blockIdx.y], to = (int)target[blockIdx.y], count = counts[blockIdx.y];
  Incoming rows;
  rows.load(lane_rows(states, from, heads.value));
  const Halves ring(from, parity[from]);
  drafts.copy(Drafts::Source(ring_keys, ring_deltas, ring_decays, heads, ring.old_first, count));

  const int line = threadIdx.x / VECTORS, part = line / (BEFORE ? BEFORE : 1), back = line % (BEFORE ? BEFORE : 1);
  const bool moves = BEFORE && (part == 2 || part < 2 && heads.is_first());
  const int draft = count - BEFORE + back, at = heads.channel(part) + threadIdx.x % VECTORS * 8;
  uint4 input;
  if (moves)
    input = *(const uint4*)((draft >= 0 ? ring_inputs + (long long)(ring.old_first + draft) * CHANNELS
                                        : tails + (long long)(from * BEFORE + draft + BEFORE) * CHANNELS) + at);
  await_copies();
  __syncthreads();  // the target may be the source: all of its tail was read
  if (moves) *(uint4*)(tails + (long long)(to * BEFORE + back) * CHANNELS + at) = input;
  const u32 zero = (u32)count >> 31;
  State x(rows, zero);
  drafts.fold(x, 0, count, threadIdx.x / 32, threadIdx.x % 32);
  x.store(lane_rows(states, to, heads.value), zero);
}
