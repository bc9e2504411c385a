"""Inputs on which every implementation of causal_conv1d must agree, and the slow formula."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.rows import PackedRows


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    rows: tuple[int, ...]
    width: int = 4
    channels: int = 6


CASES = (
    Case("one-token", (1,)),
    Case("decode", (1, 1, 1), width=2),
    Case("shorter-than-taps", (2,), width=5),
    Case("mixed", (1, 9, 1, 3, 1), width=3),
    Case("one-tap", (4, 1), width=1),
    Case("long", (70,), channels=3),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(sum(map(ord, case.name)))
    x = torch.randn(sum(case.rows), case.channels, generator=rng).to(dtype)
    weight = torch.randn(case.channels, case.width, generator=rng).to(dtype)
    tails = torch.randn(len(case.rows) + 2, case.width - 1, case.channels, generator=rng).to(dtype)
    slots = torch.randperm(len(tails), generator=rng)[: len(case.rows)]
    return {"x": x, "weight": weight, "tails": tails, "slots": slots, "rows": case.rows}


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    x, tails = given["x"], given["tails"]
    out = op.causal_conv1d(x, given["weight"], tails, given["slots"], PackedRows(given["rows"], x.device))
    return out, tails


def slow(*, x: Tensor, weight: Tensor, tails: Tensor, slots: Tensor, rows: tuple[int, ...]) -> tuple[Tensor, ...]:
    out, after, token, width = torch.empty(x.shape, dtype=torch.float64), tails.double().clone(), 0, weight.shape[1]
    for slot, count in zip(slots.tolist(), rows, strict=True):
        for c in range(x.shape[1]):
            line = [*tails[slot, :, c].tolist(), *x[token : token + count, c].tolist()]
            for t in range(count):
                y = sum(line[t + w] * float(weight[c, w]) for w in range(width))
                out[token + t, c] = y / (1 + math.exp(-y))
            after[slot, :, c] = torch.tensor(line[count:], dtype=torch.float64)
        token += count
    return out, after
