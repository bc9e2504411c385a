"""Inputs on which every implementation of block_attention must agree, and the slow formula."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.block_attention.ring import KeyRing


@dataclass(frozen=True, slots=True)
class Case:
    """starts: tokens before each row's block. size: of the rings. holes: tokens that are missing, one in so many."""

    name: str
    starts: tuple[int, ...]
    block: int
    heads: int
    kv_heads: int
    dim: int
    size: int
    window: int
    holes: int = 0


CASES = (
    Case("one", (0,), 2, 1, 1, 8, 4, 4), Case("first", (0, 1, 3), 4, 4, 2, 16, 8, 8),
    Case("full", (64, 63, 65), 8, 8, 2, 32, 64, 64),
    Case("holes", (200, 31), 8, 4, 1, 64, 48, 48, holes=3), Case("odd", (7, 100, 19), 5, 6, 2, 24, 37, 30, holes=5),
    Case("no-window", (50, 9), 3, 3, 3, 16, 64, 1 << 30), Case("published", (3000, 700), 8, 32, 8, 128, 256, 256),
    Case("none", (), 8, 4, 2, 16, 16, 16), Case("block-of-sixteen", (90,), 16, 8, 1, 32, 64, 64, holes=2),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """What a ring holds where no token is, is large, and NaN where no row is; some of it is of tokens behind the start."""
    rng = torch.Generator().manual_seed(case.size + case.block)
    rows, slots = len(case.starts), len(case.starts) + 2
    tokens = rows * case.block
    shape = (slots, case.size, case.kv_heads, case.dim)
    keys, values = (torch.randn(shape, generator=rng) for _ in range(2))
    positions, where = torch.zeros(shape[:2], dtype=torch.int64), torch.randperm(slots, generator=rng)[:rows]
    for slot, start in zip(where.tolist(), case.starts, strict=True):
        for p in range(max(0, start - case.size + 2), start + 2):
            if not case.holes or p % case.holes:
                positions[slot, p % case.size] = p + 1
    for part in (keys, values):
        part[positions == 0] = 1e4
        part[[slot for slot in range(slots) if slot not in where.tolist()]] = math.nan
    q, k, v = (torch.randn(tokens, h, case.dim, generator=rng).to(dtype) for h in (case.heads, case.kv_heads, case.kv_heads))
    return {
        "q": 2 * q, "k": k, "v": v, "keys": keys.to(dtype), "values": values.to(dtype), "positions": positions, "slots": where,
        "starts": torch.tensor(case.starts, dtype=torch.int64), "window": case.window, "scale": case.dim**-0.5,
    }


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    ring = KeyRing(*(given.pop(name) for name in ("keys", "values", "positions")))
    return (op.block_attention(**given, ring=ring),)


def slow(
    *, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, positions: Tensor, slots: Tensor, starts: Tensor,
    window: int, scale: float,
) -> tuple[Tensor, ...]:
    out, block = torch.zeros(q.shape, dtype=torch.float64), len(q) // max(1, len(slots))
    group = q.shape[1] // k.shape[1]
    for token in range(len(q)):
        row, inside = divmod(token, block)
        slot, start = int(slots[row]), int(starts[row])
        seen = [p for p in range(max(0, start + inside - window + 1), start)
                if int(positions[slot, p % keys.shape[1]]) == p + 1]
        at = [p % keys.shape[1] for p in seen]
        for head in range(q.shape[1]):
            own, mine = head // group, slice(row * block, row * block + block)
            all_keys = torch.cat((keys[slot, at, own], k[mine, own])).double()
            all_values = torch.cat((values[slot, at, own], v[mine, own])).double()
            out[token, head] = torch.softmax(scale * all_keys @ q[token, head].double(), 0) @ all_values
    return (out,)
