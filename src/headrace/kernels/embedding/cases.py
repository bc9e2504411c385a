"""Inputs on which every implementation of embedding must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    tokens: int
    vocab: int
    width: int


CASES = (Case("one", 1, 3, 1), Case("odd", 5, 9, 33), Case("pieces", 3, 4, 2_051), Case("no-tokens", 0, 4, 8))


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(case.width)
    tokens = torch.randint(0, case.vocab, (case.tokens,), generator=rng)
    return {"tokens": tokens, "weight": torch.randn(case.vocab, case.width, generator=rng).to(dtype)}


def slow(*, tokens: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    rows = weight.double().tolist()
    return (torch.tensor([rows[token] for token in tokens.tolist()], dtype=torch.float64).reshape(-1, weight.shape[1]),)


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    return (op.embedding(**given),)
