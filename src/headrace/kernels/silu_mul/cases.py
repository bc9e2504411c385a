"""Inputs on which every implementation of silu_mul must agree, and the slow formula."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    tokens: int
    intermediate: int


CASES = (Case("one", 1, 1), Case("odd", 5, 7), Case("wide", 3, 130), Case("pieces", 2, 2051), Case("no-rows", 0, 8))


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(case.tokens)
    return {"gate_up": (4 * torch.randn(case.tokens, 2 * case.intermediate, generator=rng)).to(dtype)}


def slow(*, gate_up: Tensor) -> tuple[Tensor, ...]:
    size = gate_up.shape[1] // 2
    rows = [
        [g / (1 + math.exp(-g)) * u for g, u in zip(row[:size], row[size:], strict=True)] for row in gate_up.double().tolist()
    ]
    return (torch.tensor(rows, dtype=torch.float64).reshape(-1, size),)


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    return (op.silu_mul(**given),)
