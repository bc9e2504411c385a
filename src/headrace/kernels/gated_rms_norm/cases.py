"""Inputs on which every implementation of gated_rms_norm must agree, and the slow formula."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    shape: tuple[int, int, int]
    scale: float = 1.0


CASES = (Case("one", (1, 1, 8)), Case("odd", (7, 3, 12)), Case("wide", (2, 4, 128)), Case("near-zero", (3, 2, 16), 1e-4))


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(case.shape[2])
    x, gate = (torch.randn(case.shape, generator=rng) for _ in range(2))
    weight = 1 + 0.3 * torch.randn(case.shape[2], generator=rng)
    return {"x": (x * case.scale).to(dtype), "gate": gate.to(dtype), "weight": weight, "eps": 1e-6}


def slow(*, x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, ...]:
    out = torch.empty(x.shape, dtype=torch.float64)
    for t in range(x.shape[0]):
        for h in range(x.shape[1]):
            rms = math.sqrt(sum(float(e) ** 2 for e in x[t, h]) / x.shape[2] + eps)
            for d in range(x.shape[2]):
                z = float(gate[t, h, d])
                out[t, h, d] = float(weight[d]) * float(x[t, h, d]) / rms * z / (1 + math.exp(-z))
    return (out,)


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    return (op.gated_rms_norm(**given),)
