"""Inputs on which every implementation of rope must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.precision import accumulation_dtype


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    shape: tuple[int, int, int]
    rotary: int


CASES = (Case("whole", (5, 3, 16), 16), Case("quarter", (4, 2, 32), 8), Case("two", (1, 1, 12), 2))


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(case.rotary)
    angle = 20 * torch.rand(case.shape[0], 1, case.rotary // 2, generator=rng, dtype=torch.float64)
    wide = accumulation_dtype(dtype)
    x = torch.randn(case.shape, generator=rng).to(dtype)
    return {"x": x, "cos": angle.cos().to(wide), "sin": angle.sin().to(wide)}


def slow(*, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """The pair (i, i + r / 2) as a complex number, turned."""
    out, half = x.double().clone(), cos.shape[2]
    for t in range(x.shape[0]):
        for h in range(x.shape[1]):
            for i in range(half):
                turned = complex(x[t, h, i], x[t, h, i + half]) * complex(cos[t, 0, i], sin[t, 0, i])
                out[t, h, i], out[t, h, i + half] = turned.real, turned.imag
    return (out,)


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    return (op.rope(**given),)
