"""Inputs on which every implementation of gated_delta_rule must agree, and the slow formula."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.precision import accumulation_dtype
from headrace.kernels.rows import PackedRows


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    rows: tuple[int, ...]
    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 8
    value_dim: int = 6


CASES = (
    Case("one-token", (1,)),
    Case("decode", (1, 1, 1), key_heads=1, value_heads=3),
    Case("short", (5,), key_heads=2, value_heads=2),
    Case("recurrent-edge", (8, 9), key_heads=1, value_heads=1),
    Case("chunk-edge", (63, 64, 65)),
    Case("mixed", (1, 70, 1, 3, 130, 1, 3), key_dim=12, value_dim=20),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """States that last (dt_bias) and are no larger than what is added to them, so that a rounding is small beside an output."""
    rng = torch.Generator().manual_seed(sum(map(ord, case.name)))

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng)

    tokens, heads = sum(case.rows), case.value_heads
    wide = accumulation_dtype(dtype)
    return {
        "q": draw(tokens, case.key_heads, case.key_dim).to(dtype), "k": draw(tokens, case.key_heads, case.key_dim).to(dtype),
        "v": draw(tokens, heads, case.value_dim).to(dtype),
        "a": draw(tokens, heads).to(dtype), "b": draw(tokens, heads).to(dtype),
        "a_log": draw(heads).to(wide), "dt_bias": draw(heads).to(wide) - 1,
        "states": 0.2 * draw(len(case.rows) + 2, heads, case.value_dim, case.key_dim).to(wide),
        "slots": torch.randperm(len(case.rows) + 2, generator=rng)[: len(case.rows)], "rows": case.rows,
    }


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    names = ("q", "k", "v", "a", "b", "a_log", "dt_bias", "states", "slots")
    out = op.gated_delta_rule(*(given[n] for n in names), PackedRows(given["rows"], given["v"].device))
    return out, given["states"]


def slow(
    *, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, states: Tensor, slots: Tensor,
    rows: tuple[int, ...],
) -> tuple[Tensor, ...]:
    """One token and head at a time."""
    out, after, token, ratio = torch.empty(v.shape, dtype=torch.float64), states.double().clone(), 0, v.shape[1] // k.shape[1]
    for slot, count in zip(slots.tolist(), rows, strict=True):
        for t in range(token, token + count):
            for h in range(v.shape[1]):
                query, key = (x[t, h // ratio].double() / math.sqrt(float(x[t, h // ratio].double().square().sum()) + 1e-6)
                              for x in (q, k))
                g = -math.exp(float(a_log[h])) * math.log1p(math.exp(float(a[t, h]) + float(dt_bias[h])))
                state = after[slot, h].T * math.exp(g)
                learned = (v[t, h].double() - key @ state) / (1 + math.exp(-float(b[t, h])))
                state = state + torch.outer(key, learned)
                after[slot, h] = state.T
                out[t, h] = query @ state / math.sqrt(k.shape[2])
        token += count
    return out, after
