"""Inputs on which every implementation of rms_norm must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    shape: tuple[int, ...]
    offset: float
    residual: bool = False
    scale: float = 1.0


CASES = (
    Case("one-row", (1, 7), 0.0),
    Case("heads", (5, 3, 16), 1.0),
    Case("residual", (9, 33), 0.0, residual=True),
    Case("residual-about-zero", (4, 64), 1.0, residual=True),
    Case("near-zero", (3, 24), 0.0, scale=1e-4),
    Case("model-width", (3, 5120), 1.0, residual=True),
    Case("no-rows", (0, 64), 1.0, residual=True),
    Case("widest", (2, 20_001), 0.0),
    Case("widest-residual", (2, 20_001), 1.0, residual=True),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(len(case.name))
    x = (torch.randn(case.shape, generator=rng) * case.scale).to(dtype)
    weight = 0.3 * torch.randn(case.shape[-1], generator=rng) + 1 - case.offset
    given: dict[str, Any] = {"x": x, "weight": weight, "eps": 1e-6, "offset": case.offset}
    if case.residual:
        given["residual"] = torch.randn(case.shape, generator=rng).to(dtype)
    return given


def slow(*, x: Tensor, weight: Tensor, eps: float, offset: float, residual: Tensor | None = None) -> tuple[Tensor, ...]:
    total = x if residual is None else x + residual
    normed = torch.empty(total.shape, dtype=torch.float64)
    for row, out in zip(total.double().flatten(0, -2), normed.view(-1, total.shape[-1]), strict=True):
        mean_square = sum(float(e) ** 2 for e in row) / len(row)
        out.copy_(row / (mean_square + eps) ** 0.5 * (offset + weight.double()))
    return (normed,) if residual is None else (normed, total)


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    if "residual" in given:
        normed, total = op.add_rms_norm(**given)
        return normed, total
    return (op.rms_norm(**given),)
