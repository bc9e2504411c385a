"""Attention of rows with few queries: each row's keys are split into items, whose results a second kernel combines in order."""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.paged_attention.triton.attend import attend, fetch, find, gated, load_queries, put_queries
from headrace.kernels.tile import narrow


@triton.jit
def blocks_of(length, tokens, window, least, most_tokens, STEP: tl.constexpr):
    """(first key, `least` or later, that any query sees, blocks of STEP keys from there); none for rows that are not split."""
    begin = tl.maximum(length - tokens + 1 - window, least)
    here = (tokens > 0) & (tokens <= most_tokens)
    return begin, tl.where(here, (length - begin + STEP - 1) // STEP, 0)


@triton.jit
def parts_of(blocks, all_blocks, target, LEAST: tl.constexpr):
    """(items that a row's blocks make, blocks of each), so that all rows' items are about `target`, of LEAST blocks or more."""
    most = tl.maximum((all_blocks + target - 1) // target, LEAST)
    parts = tl.maximum((blocks + most - 1) // most, 1)
    each = tl.maximum((blocks + parts - 1) // parts, 1)  # items of one row are equally long
    return (blocks + each - 1) // each, each


@triton.jit(do_not_specialize=["rows", "items_size", "least", "most_tokens", "target"])
def plan_items(
    lengths, row_offsets, items, row_items, arrived, rows, items_size, window, least, most_tokens, target,
    KV: tl.constexpr, STEP: tl.constexpr, LEAST: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr,
):
    """All that an item's block needs to begin, in one place. items [W, 8]: (row, first key, end, parts of the row, the row's
    first token, its tokens, its length, the row's first item), row -1 where there is no item. row_items [R, 2]: (first item,
    parts). arrived [R, KV]: zeros, to count the items whose sums are there.

    Grid: W / BLOCK_W; each program scans all rows.
    """
    r = tl.arange(0, BLOCK_R)
    alive = r < rows
    length = tl.load(lengths + r, mask=alive, other=0)
    start = tl.load(row_offsets + r, mask=alive, other=0)
    tokens = tl.load(row_offsets + r + 1, mask=alive, other=0) - start
    _, blocks = blocks_of(length, tokens, window, least, most_tokens, STEP)
    all_blocks = tl.sum(blocks, 0)
    parts, _ = parts_of(blocks, all_blocks, target, LEAST)
    ends = tl.cumsum(parts, 0)
    if tl.program_id(0) == 0:
        tl.store(row_items + 2 * r, ends - parts, mask=alive)
        tl.store(row_items + 2 * r + 1, parts, mask=alive)
        for head in tl.static_range(KV):
            tl.store(arrived + r * KV + head, 0, mask=alive)
    w = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    row = tl.sum((ends[None, :] <= w[:, None]).to(tl.int32), 1)
    found = row < rows
    own = tl.where(found, row, 0)
    before = tl.sum(tl.where(r[None, :] < own[:, None], parts[None, :], 0), 1)
    own_length, own_start = tl.load(lengths + own), tl.load(row_offsets + own)
    own_tokens = tl.load(row_offsets + own + 1) - own_start
    begin, own_blocks = blocks_of(own_length, own_tokens, window, least, most_tokens, STEP)
    own_parts, each = parts_of(own_blocks, all_blocks, target, LEAST)
    first = begin + (w - before) * each * STEP
    inside = w < items_size
    tl.store(items + 8 * w, tl.where(found, row, -1), mask=inside)
    tl.store(items + 8 * w + 1, first, mask=inside)
    tl.store(items + 8 * w + 2, tl.minimum(first + each * STEP, own_length), mask=inside)
    tl.store(items + 8 * w + 3, own_parts, mask=inside)
    tl.store(items + 8 * w + 4, own_start, mask=inside)
    tl.store(items + 8 * w + 5, own_tokens, mask=inside)
    tl.store(items + 8 * w + 6, own_length, mask=inside)
    tl.store(items + 8 * w + 7, before, mask=inside)


@triton.jit(do_not_specialize=["table_stride", "most_queries"])
def attend_item(
    q, keys, values, key_scales, value_scales, gate, out, partial, tops, totals, page_table, items,
    scale, window, table_stride, gate_token_stride, gate_head_stride, most_queries,
    KV: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, PAGE: tl.constexpr, KIND: tl.constexpr, DOT: tl.constexpr, GAIN: tl.constexpr,
    UNIT: tl.constexpr, GATED: tl.constexpr, BYTES_HERE: tl.constexpr, WINDOWED: tl.constexpr,
):
    """Grid [KV, W, tiles of BLOCK_M queries]: blocks without an item come last, so that they do not unbalance the others.

    A row's only item writes its output, others leave partial sums:
    partial [W, KV, most_queries, D], tops and totals [W, KV, most_queries] fp32.
    """
    kv_head, item = tl.program_id(0), tl.program_id(1)
    row, tokens = tl.load(items + 8 * item), tl.load(items + 8 * item + 5)
    if (row < 0) | (tl.program_id(2) * BLOCK_M >= tokens * GROUP):
        return
    first_key, end, parts = tl.load(items + 8 * item + 1), tl.load(items + 8 * item + 2), tl.load(items + 8 * item + 3)
    first_token, length = tl.load(items + 8 * item + 4), tl.load(items + 8 * item + 6)
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    queries = load_queries(q, first_token, tokens, m, kv_head, KV, GROUP, D, BLOCK_D, DOT)
    positions = length - tokens + m // GROUP
    last, seen_from = tl.minimum(positions, end - 1), positions + 1 - window
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    table = page_table + row.to(tl.int64) * table_stride
    for first in range(first_key, end, BLOCK_N):
        places = find(table, first, end, kv_head, KV, BLOCK_N, PAGE)
        k, k_scales = fetch(keys, key_scales, places, D, BLOCK_D, KIND)
        v, v_scales = fetch(values, value_scales, places, D, BLOCK_D, KIND)
        acc, top, total = attend(acc, top, total, queries, first, last, seen_from, k, k_scales, v, v_scales, scale,
                                 KIND, GAIN, True, WINDOWED, BYTES_HERE)
    if parts == 1:
        put_queries(out, acc, total, gate, gate_token_stride, gate_head_stride, first_token, tokens, m, kv_head, UNIT,
                    KV, GROUP, D, BLOCK_D, GATED)
    else:
        dims = tl.arange(0, BLOCK_D)
        alive = m < tokens * GROUP
        at = (item * KV + kv_head) * most_queries + m
        tl.store(tops + at, top, mask=alive)
        tl.store(totals + at, total, mask=alive)
        tl.store(partial + at[:, None].to(tl.int64) * D + dims[None, :], acc, mask=alive[:, None] & (dims < D)[None, :])


@triton.jit(do_not_specialize=["most_tokens"])
def combine(
    partial, tops, totals, gate, out, row_offsets, row_items, gate_token_stride, gate_head_stride, most_tokens,
    KV: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
    UNIT: tl.constexpr, GATED: tl.constexpr,
):
    """Grid [R * most_tokens, KV * GROUP]: one query head of one token from its row's items, in their order."""
    row, token = tl.program_id(0) // most_tokens, tl.program_id(0) % most_tokens
    head = tl.program_id(1)
    first, parts = tl.load(row_items + 2 * row), tl.load(row_items + 2 * row + 1)
    first_token = tl.load(row_offsets + row)
    if (token >= tl.load(row_offsets + row + 1) - first_token) | (parts <= 1):
        return
    dims, steps = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_S)
    query = token * GROUP + head % GROUP
    top = float("-inf")
    total = 0.0
    acc = tl.zeros((BLOCK_D,), tl.float32)
    for part in range(0, parts, BLOCK_S):
        alive = part + steps < parts
        at = ((first + part + steps) * KV + head // GROUP) * (most_tokens * GROUP) + query
        item_tops = tl.load(tops + at, mask=alive, other=float("-inf"))
        item_totals = tl.load(totals + at, mask=alive, other=0.0)
        sums = tl.load(partial + at[:, None].to(tl.int64) * D + dims[None, :],
                       mask=alive[:, None] & (dims < D)[None, :], other=0.0)
        new_top = tl.maximum(top, tl.max(item_tops, 0))
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(item_tops - shift)
        shrink = tl.exp2(top - shift)
        total = total * shrink + tl.sum(item_totals * weights, 0)
        acc = acc * shrink + tl.sum(sums * weights[:, None], 0)
        top = new_top
    y = (acc * (UNIT / total))[None, :]
    at_token = tl.full((1,), 0, tl.int32) + first_token + token
    alive_dims = (dims < D)[None, :]
    if GATED:
        y = gated(y, gate, at_token, head, gate_token_stride, gate_head_stride, dims, alive_dims)
    at_out = (at_token.to(tl.int64) * (KV * GROUP) + head) * D
    tl.store(out + at_out[:, None] + dims[None, :], narrow(y, out.dtype.element_ty), mask=alive_dims)
