"""Inputs on which every implementation of linear must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    tokens: int
    inputs: int
    outputs: int


CASES = (Case("one-row", 1, 16, 7), Case("few-rows", 4, 33, 5), Case("eight-rows", 8, 64, 9), Case("many-rows", 17, 8, 3))


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(case.tokens)
    x, weight = (torch.randn(n, case.inputs, generator=rng).to(dtype) for n in (case.tokens, case.outputs))
    return {"x": x, "weight": weight}


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    return (op.linear(**given),)


def slow(*, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    rows, columns = x.double().tolist(), weight.double().tolist()
    products = [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in rows]
    return (torch.tensor(products, dtype=torch.float64),)
