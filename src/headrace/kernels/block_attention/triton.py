"""A row's block, a key head and a part of the ring a program; what several parts make of one block is combined in order.

Source of the online softmax: Milakov and Gimelshein, Online normalizer calculation for softmax (2018).
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.block_attention.ring import KeyRing
from headrace.kernels.card import card
from headrace.kernels.dispatch import early
from headrace.kernels.tile import await_previous, dot, let_next_start, narrow, store
from headrace.kernels.variant import Variant

_STEP, _STEP_OF_MANY = 64, 32
"""Keys at once; of more than 32 queries a key head, whose sums take the registers."""
_LEAST_TOKENS = 128
_MOST_PARTS = 16
_PROGRAMS_PER_PROCESSOR = 2


@triton.jit
def _attend(acc, top, total, q, k, v, seen, scale):
    """acc [M, D], top [M] and total [M] of the online softmax, after keys k and values v [N, D] that are seen [M, N].

    scale includes log2(e).
    """
    scores = dot(q, tl.trans(k), tl.zeros((q.shape[0], k.shape[0]), tl.float32), "tf32x3")
    scores = tl.where(seen, scores * scale, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    shift = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp2(scores - shift[:, None])
    shrink = tl.exp2(top - shift)
    acc = dot(narrow(weights, v.dtype), v, acc * shrink[:, None], "tf32x3")
    return acc, new_top, total * shrink + tl.sum(weights, 1)


@triton.jit
def _parts(
    q, k, v, keys, values, positions, slots, starts, out, sums, peaks, totals, size, window, scale, block,
    KV: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_B: tl.constexpr,
    STEP: tl.constexpr, PARTS: tl.constexpr, EARLY: tl.constexpr,
):
    """Grid [R, KV, PARTS]. sums [R, KV, PARTS, M, BLOCK_D], peaks and totals [R, KV, PARTS, M], where there are several."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row, head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    slot, start = tl.load(slots + row), tl.load(starts + row).to(tl.int32)
    dims, m = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_M)
    inside, alive = dims < D, m < block * GROUP
    query_at = ((row * block + m // GROUP) * KV + head) * GROUP + m % GROUP
    mask = alive[:, None] & inside[None, :]
    queries = tl.load(q + query_at[:, None] * D + dims[None, :], mask=mask, other=0.0)
    oldest = start + m // GROUP - window  # the newest position that is not seen
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    top, total = tl.full((BLOCK_M,), float("-inf"), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    steps = tl.cdiv(tl.cdiv(tl.minimum(size, start), STEP), PARTS)  # of short sequences only the first places have tokens
    for step in range(part * steps, part * steps + steps):
        place = step * STEP + tl.arange(0, STEP)
        position = tl.load(positions + slot * size + place, mask=place < size, other=0).to(tl.int32) - 1
        kept = (position >= 0) & (position < start) & (position > start - window)
        at = (((slot * size + place) * KV + head) * D)[:, None] + dims[None, :]
        key = tl.load(keys + at, mask=kept[:, None] & inside[None, :], other=0.0)
        value = tl.load(values + at, mask=kept[:, None] & inside[None, :], other=0.0)
        seen = kept[None, :] & (position[None, :] > oldest[:, None])
        acc, top, total = _attend(acc, top, total, queries, key, value, seen, scale)
    if part == PARTS - 1:
        own = tl.arange(0, BLOCK_B)
        here = own < block
        at = (((row * block + own) * KV + head) * D)[:, None] + dims[None, :]
        key = tl.load(k + at, mask=here[:, None] & inside[None, :], other=0.0)
        value = tl.load(v + at, mask=here[:, None] & inside[None, :], other=0.0)
        acc, top, total = _attend(acc, top, total, queries, key, value, here[None, :] & (m[:, None] >= 0), scale)
    if PARTS == 1:
        store(out + query_at[:, None] * D + dims[None, :], acc / total[:, None], mask)
    else:
        found = (row * KV + head) * PARTS + part
        tl.store(sums + (found * BLOCK_M + m)[:, None] * BLOCK_D + dims[None, :], acc)
        tl.store(peaks + found * BLOCK_M + m, top)
        tl.store(totals + found * BLOCK_M + m, total)


@triton.jit
def _combine(
    sums, peaks, totals, out, block,
    KV: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, SOME: tl.constexpr,
    PARTS: tl.constexpr, EARLY: tl.constexpr,
):
    """Grid [R, KV, M / SOME]. The last part has seen the block itself, so that some peak is finite."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row, head, m = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2) * SOME + tl.arange(0, SOME)
    dims = tl.arange(0, BLOCK_D)
    first = (row * KV + head) * PARTS
    top = tl.full((SOME,), float("-inf"), tl.float32)
    for part in tl.static_range(PARTS):
        top = tl.maximum(top, tl.load(peaks + (first + part) * BLOCK_M + m))
    acc, total = tl.zeros((SOME, BLOCK_D), tl.float32), tl.zeros((SOME,), tl.float32)
    for part in range(PARTS):
        at = (first + part) * BLOCK_M + m
        share = tl.exp2(tl.load(peaks + at) - top)
        acc += share[:, None] * tl.load(sums + at[:, None] * BLOCK_D + dims[None, :])
        total += share * tl.load(totals + at)
    query_at = ((row * block + m // GROUP) * KV + head) * GROUP + m % GROUP
    mask = (m < block * GROUP)[:, None] & (dims < D)[None, :]
    store(out + query_at[:, None] * D + dims[None, :], acc / total[:, None], mask)


def block_attention(
    q: Tensor, k: Tensor, v: Tensor, ring: KeyRing, slots: Tensor, starts: Tensor, window: int, scale: float
) -> Tensor:
    out, rows = torch.empty_like(q, memory_format=torch.contiguous_format), len(slots)
    if not rows:
        return out
    (_, heads, dim), size = q.shape, ring.keys.shape[1]
    kv, block = k.shape[1], len(q) // rows
    sizes = _sizes(heads, kv, dim, block)
    parts = _part_count(rows * kv, size, card(q.device).processors)
    shape = (rows, kv, parts, sizes["BLOCK_M"]) if parts > 1 else (0,)
    sums = torch.empty((*shape, sizes["BLOCK_D"]), dtype=torch.float32, device=q.device)
    peaks, totals = (torch.empty(shape, dtype=torch.float32, device=q.device) for _ in range(2))
    _parts[(rows, kv, parts)](
        q.contiguous(), k.contiguous(), v.contiguous(), ring.keys, ring.values, ring.positions, slots, starts, out, sums, peaks,
        totals, size, window, scale * math.log2(math.e), block, **sizes, BLOCK_B=max(16, triton.next_power_of_2(block)),
        STEP=_step(sizes), PARTS=parts, num_warps=_warps(sizes), num_stages=2, **early(q.device),
    )
    if parts > 1:
        _combine[(rows, kv, triton.cdiv(sizes["BLOCK_M"], 8))](
            sums, peaks, totals, out, block, **sizes, SOME=8, PARTS=parts, num_warps=4, **early(q.device)
        )
    return out


def _sizes(heads: int, kv: int, dim: int, block: int) -> dict[str, int]:
    return {
        "KV": kv, "GROUP": heads // kv, "D": dim, "BLOCK_M": max(16, triton.next_power_of_2(block * (heads // kv))),
        "BLOCK_D": max(16, triton.next_power_of_2(dim)),
    }


def _step(sizes: dict[str, int]) -> int:
    return _STEP if sizes["BLOCK_M"] <= 32 else _STEP_OF_MANY


def _warps(sizes: dict[str, int]) -> int:
    return 4 if sizes["BLOCK_M"] <= 32 else 8


def _part_count(blocks: int, size: int, processors: int) -> int:
    """Parts of each of so many blocks' rings: as many as keep the processors busy, none of fewer than _LEAST_TOKENS tokens."""
    wanted = _PROGRAMS_PER_PROCESSOR * processors // blocks
    most = min(_MOST_PARTS, size // _LEAST_TOKENS, wanted)
    return 1 << (most.bit_length() - 1) if most > 1 else 1


def _variants(dtype: str, kv: int, group: int, dim: int, block: int, parts: int) -> tuple[Variant, ...]:
    sizes = _sizes(kv * group, kv, dim, block)
    floats = dict.fromkeys(("sums", "peaks", "totals"), "*fp32")
    name = f"{dtype}-{kv * group}-{kv}-{dim}-{block}-{parts}"
    tensors = dict.fromkeys(("q", "k", "v", "keys", "values", "out"), f"*{dtype}") | floats
    attend = Variant(
        name, _parts,
        tensors | dict.fromkeys(("positions", "slots", "starts"), "*i64")
        | dict.fromkeys(("size", "window", "block"), "i32") | {"scale": "fp32"},
        {**sizes, "BLOCK_B": max(16, triton.next_power_of_2(block)), "STEP": _step(sizes), "PARTS": parts},
        num_warps=_warps(sizes), early=True,
    )
    if parts == 1:
        return (attend,)
    return attend, Variant(
        f"{name}-combined", _combine, floats | {"out": f"*{dtype}", "block": "i32"}, {**sizes, "SOME": 8, "PARTS": parts},
        early=True,
    )


VARIANTS = (
    *(v for dtype in ("bf16", "fp16") for parts in (1, 2, 4, 8, 16) for v in _variants(dtype, 8, 4, 128, 8, parts)),
    *_variants("bf16", 8, 4, 128, 16, 4), *_variants("fp32", 2, 2, 64, 8, 2),
)
