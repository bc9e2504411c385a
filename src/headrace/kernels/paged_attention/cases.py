"""Inputs on which every implementation of paged_attention must agree, and the slow formula.

Pages that no row may read hold NaN (8-bit ones: NaN scales), as do the ends of rows' last pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.kv_write.codes import encode


@dataclass(frozen=True, slots=True)
class Case:
    """rows: (query tokens, length) each."""

    name: str
    rows: tuple[tuple[int, int], ...]
    heads: int = 4
    kv_heads: int = 2
    page_tokens: int = 4
    window: int | None = None
    dim: int = 8
    kv: torch.dtype | None = None  # of the pools; None: as the queries
    gated: bool = False
    first: int = 0


E4M3 = torch.float8_e4m3fn
CASES = (
    Case("first-token", ((1, 1),)),
    Case("prompt", ((13, 13),), heads=3, kv_heads=1),
    Case("chunk", ((5, 21),), heads=2, kv_heads=2, page_tokens=1),
    Case("decode-even", ((1, 9), (1, 9)), page_tokens=16),
    Case("decode-uneven", ((1, 30), (1, 2), (1, 11)), heads=6, kv_heads=2, page_tokens=3),
    Case("mixed", ((1, 7), (4, 4), (1, 18), (2, 9), (1, 1)), heads=5, kv_heads=1),
    Case("window", ((1, 23), (6, 20), (1, 3), (9, 9)), window=5),
    Case("window-one", ((1, 5), (3, 6)), window=1, page_tokens=2),
    Case("far-apart", ((1, 5000), (1, 3), (1, 4)), heads=1, kv_heads=1, page_tokens=16, dim=2),
    Case("first-key", ((1, 30), (1, 2), (1, 23)), heads=6, kv_heads=2, page_tokens=3, first=1),
    Case("first-key-window", ((1, 40), (3, 9), (1, 5)), page_tokens=4, window=7, first=2),
    Case("verify", ((4, 90), (1, 33), (9, 60)), heads=12, kv_heads=2, page_tokens=16, dim=16, gated=True),
    Case("long-chunk", ((2, 70), (45, 120), (1, 9)), heads=8, kv_heads=1, page_tokens=16, dim=16, gated=True),
    Case("long-chunk-window", ((50, 50), (1, 40)), heads=3, kv_heads=3, page_tokens=8, window=11, dim=24),
    Case("int8", ((1, 200), (3, 21)), heads=12, kv_heads=2, page_tokens=16, dim=64, kv=torch.int8),
    Case("int8-chunk", ((40, 77), (1, 5)), heads=2, kv_heads=1, page_tokens=4, kv=torch.int8, gated=True),
    Case("fp8", ((1, 200), (3, 21)), heads=6, kv_heads=1, page_tokens=16, dim=64, kv=E4M3, gated=True),
    Case("fp8-chunk-window", ((40, 77), (1, 5)), heads=4, kv_heads=2, page_tokens=2, window=19, kv=E4M3),
    Case("wide", ((1, 1), (1, 300), (1, 48), (1, 17)), heads=6, kv_heads=1, page_tokens=16, dim=256, gated=True),
    Case("wide-first-key", ((1, 2), (1, 300), (1, 49), (4, 18)), heads=6, kv_heads=1, page_tokens=16, dim=256, gated=True,
         first=1),
    Case("wide-first-key-int8", ((1, 2), (1, 300), (1, 49)), heads=6, kv_heads=1, page_tokens=16, dim=256, kv=torch.int8,
         first=1),
    Case("wide-int8-window", ((1, 90), (1, 150)), heads=9, kv_heads=3, page_tokens=16, window=70, dim=128, kv=torch.int8),
    Case("wide-verify", ((8, 200), (3, 40), (1, 100), (2, 2)), heads=6, kv_heads=1, page_tokens=16, dim=256, gated=True),
    Case("wide-verify-fp8-window", ((20, 150), (1, 64)), heads=12, kv_heads=3, page_tokens=32, window=66, dim=128, kv=E4M3),
    Case("wide-chunk", ((50, 230), (1, 20)), heads=6, kv_heads=1, page_tokens=16, dim=256, gated=True),
    Case("wide-chunk-int8-window", ((70, 130),), heads=6, kv_heads=3, page_tokens=32, window=41, dim=128, kv=torch.int8),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(sum(map(ord, case.name)))
    needed = [-(-length // case.page_tokens) for _, length in case.rows]
    pages = torch.randperm(sum(needed) + 3, generator=rng)
    shape = (len(pages), case.page_tokens, case.kv_heads, case.dim)
    keys, values = (torch.full(shape, float("nan"), dtype=dtype) for _ in range(2))
    page_table = torch.zeros(len(case.rows), max(needed), dtype=torch.int64) + pages[-1]
    taken = 0
    for row, ((queries, length), count) in enumerate(zip(case.rows, needed, strict=True)):
        page_table[row, :count] = pages[taken : taken + count]
        taken += count
        for position in range(max(case.first, length - queries + 1 - (case.window or length)), length):
            for pool in (keys, values):
                token = torch.randn(shape[2:], generator=rng).to(dtype)
                pool[page_table[row, position // case.page_tokens], position % case.page_tokens] = token
    q = torch.randn(sum(n for n, _ in case.rows), case.heads, case.dim, generator=rng).to(dtype)
    given = {"q": q, "keys": keys, "values": values, "page_table": page_table, "rows": case.rows, "window": case.window,
             "first": case.first}
    if case.gated:
        both = 2 * torch.rand(*q.shape[:2], 2 * case.dim, generator=rng) - 1
        given["gate"] = both.to(dtype)[..., case.dim :]  # every other vector, as in the layer
    return given if case.kv is None else given | _encoded(keys, values, case.kv)


def _encoded(keys: Tensor, values: Tensor, kv: torch.dtype) -> dict[str, Tensor]:
    """The pools in 8 bits. Where they hold NaN, the scales do."""
    given = {}
    for name, scales, pool in (("keys", "key_scales", keys), ("values", "value_scales", values)):
        given[name], given[scales] = encode(pool.nan_to_num(), kv)
        given[scales].masked_fill_(pool[..., 0].isnan(), float("nan"))
    return given


SCALE = 0.4


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    queries, lengths = zip(*given["rows"], strict=True)
    keys, values = given["keys"], given["values"]
    ends, offsets = (
        torch.tensor(numbers, dtype=torch.int32, device=keys.device) for numbers in (lengths, (0, *accumulate(queries)))
    )
    rows = op.plan_rows(given["page_table"], ends, offsets, queries, keys.shape[1], given["window"], given["first"])
    more = {name: given[name] for name in ("key_scales", "value_scales", "gate") if name in given}
    return (op.paged_attention(given["q"], keys, values, rows, SCALE, **more),)


def slow(
    *, q: Tensor, keys: Tensor, values: Tensor, page_table: Tensor, rows: tuple[tuple[int, int], ...], window: int | None,
    first: int, key_scales: Tensor | None = None, value_scales: Tensor | None = None, gate: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """One query and head at a time."""
    pools = [pool.double() if scales is None else pool.double() * scales.double()[..., None]
             for pool, scales in ((keys, key_scales), (values, value_scales))]
    out, token, page_tokens, group = torch.empty(q.shape, dtype=torch.float64), 0, keys.shape[1], q.shape[1] // keys.shape[2]
    for pages, (queries, length) in zip(page_table.tolist(), rows, strict=True):
        for position in range(length - queries, length):
            seen = range(max(first, position + 1 - window) if window else first, position + 1)
            places = [(pages[p // page_tokens], p % page_tokens) for p in seen]
            k, v = (torch.stack([pool[place] for place in places]) for pool in pools)
            for head in range(q.shape[1]):
                scores = (k[:, head // group] @ q[token, head].double()) * SCALE
                weights = (scores - scores.max()).exp()
                out[token, head] = weights @ v[:, head // group] / weights.sum()
            token += 1
    return (out if gate is None else out / (1 + (-gate.double()).exp()),)
