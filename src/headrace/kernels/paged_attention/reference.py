"""The definition of paged attention in plain PyTorch: gather each row's own tokens, then one dense attention per block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headrace.kernels.kv_write.codes import decode
from headrace.kernels.paged_attention.rows import PagedRows
from headrace.kernels.precision import accumulation_dtype

MASK_ELEMENTS = 1 << 20
"""Most elements of one mask: long chunks are cut into blocks of queries, which bounds the workspace."""
PADDING_TOKENS = 4096
"""Padding that rows decoded together may cost whatever their lengths; beyond it, padding may not exceed the tokens."""
Pools = tuple[tuple[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
"""Keys and values, each with its scales."""


@dataclass(frozen=True, slots=True)
class Block:
    """B rows of n queries that attend together. at: their tokens in the batch. read_at [B, L]: their keys' places.

    A slice for read_at: the places of one row that lie side by side, and need not be gathered.
    """

    count: int
    queries: int
    at: slice | Tensor
    read_at: Tensor | slice
    mask: Tensor | None  # [B, 1, n, L] bool, True is seen; None sees all


def plan_rows(
    page_table: Tensor, lengths: Tensor, row_offsets: Tensor, row_tokens: Sequence[int], page_tokens: int,
    window: int | None = None, first: int = 0, *, longer: int | None = None,
) -> PagedRows:
    """first: keys before it are never read. Every row is longer. longer: row_tokens are bounds, of one token but for so many
    last rows.
    """
    if longer is None:
        return PagedRows(page_table, lengths, row_offsets, row_tokens, page_tokens, window, first)
    at = len(lengths) - longer
    others = PagedRows(
        page_table[at:], lengths[at:], row_offsets[at:], row_tokens[at:], page_tokens, window, first, bounded=True
    )
    return PagedRows(
        page_table[:at], lengths[:at], row_offsets[: at + 1], row_tokens[:at], page_tokens, window, first, bounded=True,
        others=others,
    )


def _blocks(rows: PagedRows) -> tuple[Block, ...]:
    if rows.bounded:
        raise NotImplementedError("how many tokens each row has is not known before a captured step runs")
    starts, total = [], 0
    for tokens in rows.row_tokens:
        starts.append(total)
        total += tokens
    table, page_tokens, window = rows.page_table, rows.page_tokens, rows.window
    lengths: list[int] = rows.lengths.tolist()  # waits for a device, which alone knows them while drafts are being verified
    spans = [min(length - rows.first, window or length) for length in lengths]
    decoding = [r for r, tokens in enumerate(rows.row_tokens) if tokens == 1]
    blocks = [
        _decode_block(picked, [starts[r] for r in picked], [spans[r] for r in picked], table, rows.lengths, page_tokens)
        for picked in _buckets(decoding, spans)
    ]
    for row, tokens in enumerate(rows.row_tokens):
        if tokens > 1:
            blocks += _chunk_blocks(starts[row], tokens, lengths[row], table[row], rows)
    return tuple(blocks)


def _buckets(rows: list[int], spans: Sequence[int]) -> Iterator[list[int]]:
    """Split rows into lists whose padding to the longest stays bounded; each list keeps the batch's order."""
    waiting = sorted(rows, key=lambda r: -spans[r])
    while waiting:
        longest, used, take = spans[waiting[0]], 0, 0
        for row in waiting:
            padding = longest * (take + 1) - used - spans[row]
            if padding > max(PADDING_TOKENS, used):
                break
            used, take = used + spans[row], take + 1
        yield sorted(waiting[:take])
        waiting = waiting[take:]


def _decode_block(
    rows: list[int], starts: list[int], spans: list[int], page_table: Tensor, lengths: Tensor, page_tokens: int
) -> Block:
    device, longest = page_table.device, max(spans)
    at: slice | Tensor
    if starts[-1] - starts[0] == len(rows) - 1:
        at, pick = slice(starts[0], starts[-1] + 1), slice(rows[0], rows[-1] + 1)
        table, ends = page_table[pick], lengths[pick].long()
    else:
        at, index = torch.tensor(starts, device=device), torch.tensor(rows, device=device)
        table, ends = page_table[index], lengths[index].long()
    span = torch.tensor(spans, device=device)
    steps = torch.arange(longest, device=device)
    # Steps past a row's end repeat its last token: masked, but its own memory, never another sequence's.
    tokens = torch.minimum((ends - span)[:, None] + steps, ends[:, None] - 1)  # [B, L]
    even = min(spans) == longest
    mask = None if even else (steps < span[:, None])[:, None, None]
    return Block(len(rows), 1, at, _side_by_side(_places(table, tokens, page_tokens)), mask)


def _chunk_blocks(start: int, tokens: int, length: int, pages: Tensor, rows: PagedRows) -> Iterator[Block]:
    device, window = pages.device, rows.window
    most = max(16, min(256, MASK_ELEMENTS // length))
    for done in range(0, tokens, most):
        queries = min(most, tokens - done)
        first = length - tokens + done  # position of the block's first query
        seen = max(rows.first, first + 1 - window) if window else rows.first
        keys = torch.arange(seen, first + queries, device=device)
        asking = torch.arange(first, first + queries, device=device)[:, None]
        mask = keys <= asking
        if window:
            mask &= keys > asking - window
        at = slice(start + done, start + done + queries)
        yield Block(1, queries, at, _places(pages[None], keys[None], rows.page_tokens), mask[None, None])


def _places(table: Tensor, tokens: Tensor, page_tokens: int) -> Tensor:
    """Places in the pool [B, L] of token positions [B, L] under page tables [B, pages]."""
    pages = table.gather(1, tokens // page_tokens)
    return pages * page_tokens + tokens % page_tokens


def _side_by_side(read_at: Tensor) -> Tensor | slice:
    """A lone row's places as a slice where they are neighbours. Only where looking at them does not wait for a device."""
    if read_at.is_cuda or read_at.shape[0] > 1:
        return read_at
    first, last = int(read_at[0, 0]), int(read_at[0, -1])
    neighbours = bool((read_at[0].diff() == 1).all())
    return slice(first, last + 1) if neighbours else read_at


def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, rows: PagedRows, scale: float, key_scales: Tensor | None = None,
    value_scales: Tensor | None = None, gate: Tensor | None = None,
) -> Tensor:
    wide = accumulation_dtype(q.dtype)
    pools = ((keys, key_scales), (values, value_scales))
    blocks = rows.once("blocks", lambda: _blocks(rows))
    if len(blocks) == 1:  # it holds every row, in order: the decode path spares two copies
        out = _attend(q.to(wide), pools, blocks[0], scale).to(q.dtype)
    else:
        out = torch.empty_like(q)
        for block in blocks:
            out[block.at] = _attend(q[block.at].to(wide), pools, block, scale).to(q.dtype)
    return out if gate is None else out * gate.sigmoid()


def _attend(q: Tensor, pools: Pools, block: Block, scale: float) -> Tensor:
    """q [B * n, H, D] -> [B * n, H, D]. The query heads of one key head attend as further queries of it."""
    kv_heads, dim = pools[0][0].shape[2:]
    group, n = q.shape[1] // kv_heads, block.queries
    mask = block.mask
    if n == 1:  # one query a row: its heads lie as they are needed
        q = q.reshape(block.count, kv_heads, group, dim)
        k, v = (_gather(pool, scales, block.read_at, q.dtype) for pool, scales in pools)
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).reshape(block.count, kv_heads * group, dim)
    q = q.reshape(block.count, n, kv_heads, group, dim).permute(0, 2, 3, 1, 4).flatten(2, 3)  # [B, KV, G * n, D]
    if mask is not None and n > 1:
        mask = mask.repeat(1, 1, group, 1)  # [B, 1, G * n, L]
    k, v = (_gather(pool, scales, block.read_at, q.dtype) for pool, scales in pools)
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    out = out.view(block.count, kv_heads, group, n, dim).permute(0, 3, 1, 2, 4)
    return out.reshape(block.count * n, kv_heads * group, dim)


def _gather(pool: Tensor, scales: Tensor | None, read_at: Tensor | slice, dtype: torch.dtype) -> Tensor:
    """[pages, P, KV, D] at places [B, L] -> [B, KV, L, D], decoded."""
    tokens, scales = pool.view(-1, *pool.shape[2:]), None if scales is None else scales.view(-1, pool.shape[2])
    if isinstance(read_at, slice):
        return decode(tokens[read_at], None if scales is None else scales[read_at], dtype).transpose(0, 1)[None]
    places = read_at.flatten()
    picked = decode(_pick(tokens, places), None if scales is None else scales.index_select(0, places), dtype)
    return picked.view(*read_at.shape, *pool.shape[2:]).transpose(1, 2)


def _pick(tokens: Tensor, places: Tensor) -> Tensor:
    """tokens[places]. Not every PyTorch selects among fp8 numbers: their bytes it can."""
    if tokens.dtype == torch.float8_e4m3fn:
        return tokens.view(torch.uint8).index_select(0, places).view(tokens.dtype)
    return tokens.index_select(0, places)
