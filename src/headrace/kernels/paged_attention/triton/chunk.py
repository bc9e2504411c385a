"""Attention of rows with many queries (prefill chunks): a tile of queries and one key head at a time, over all keys it sees."""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.paged_attention.triton.attend import attend, fetch, find, load_queries, put_queries


@triton.jit(do_not_specialize=["table_stride"])
def attend_chunk(
    q, keys, values, key_scales, value_scales, gate, out, page_table, lengths, row_offsets, tiles,
    scale, window, table_stride, gate_token_stride, gate_head_stride,
    KV: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, PAGE: tl.constexpr, KIND: tl.constexpr, DOT: tl.constexpr, GAIN: tl.constexpr,
    UNIT: tl.constexpr, GATED: tl.constexpr, BYTES_HERE: tl.constexpr, WINDOWED: tl.constexpr,
):
    """Grid [tiles, KV]. tiles [n, 2] int32: (row, which BLOCK_M of its tokens x GROUP queries)."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    row, m_tile = tl.load(tiles + 2 * tile), tl.load(tiles + 2 * tile + 1)
    first_token = tl.load(row_offsets + row)
    tokens = tl.load(row_offsets + row + 1) - first_token
    length = tl.load(lengths + row)
    m = m_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    queries = load_queries(q, first_token, tokens, m, kv_head, KV, GROUP, D, BLOCK_D, DOT)
    positions = length - tokens + m // GROUP
    earliest = length - tokens + m_tile * BLOCK_M // GROUP
    end = tl.minimum(length - tokens + (m_tile * BLOCK_M + BLOCK_M - 1) // GROUP + 1, length)
    last, seen_from = tl.minimum(positions, end - 1), positions + 1 - window
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    table = page_table + row.to(tl.int64) * table_stride
    if WINDOWED:
        seen_by_all = tl.maximum(earliest + 1 - window, 0)  # no block is: this is where the masked ones begin
    else:
        seen_by_all = (earliest + 1) // BLOCK_N * BLOCK_N
        for first in range(0, seen_by_all, BLOCK_N):
            places = find(table, first, end, kv_head, KV, BLOCK_N, PAGE)
            k, k_scales = fetch(keys, key_scales, places, D, BLOCK_D, KIND)
            v, v_scales = fetch(values, value_scales, places, D, BLOCK_D, KIND)
            acc, top, total = attend(acc, top, total, queries, first, last, seen_from, k, k_scales, v, v_scales, scale,
                                     KIND, GAIN, False, WINDOWED, BYTES_HERE)
    for first in range(seen_by_all, end, BLOCK_N):
        places = find(table, first, end, kv_head, KV, BLOCK_N, PAGE)
        k, k_scales = fetch(keys, key_scales, places, D, BLOCK_D, KIND)
        v, v_scales = fetch(values, value_scales, places, D, BLOCK_D, KIND)
        acc, top, total = attend(acc, top, total, queries, first, last, seen_from, k, k_scales, v, v_scales, scale,
                                 KIND, GAIN, True, WINDOWED, BYTES_HERE)
    put_queries(out, acc, total, gate, gate_token_stride, gate_head_stride, first_token, tokens, m, kv_head, UNIT,
                KV, GROUP, D, BLOCK_D, GATED)
