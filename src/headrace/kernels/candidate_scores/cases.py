"""Inputs on which every implementation of candidate_scores must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.precision import accumulation_dtype


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    rows: int
    candidates: int
    rank: int
    vocab: int


CASES = (
    Case("one", 1, 1, 1, 2), Case("published", 5, 16, 256, 300), Case("odd", 3, 7, 19, 50), Case("wide", 2, 33, 300, 99),
    Case("none", 0, 4, 8, 10),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Of each row, what is given is a place among others."""
    rng = torch.Generator().manual_seed(case.rank)
    unary = torch.randn(case.rows, 3, case.candidates, generator=rng).to(accumulation_dtype(dtype))
    candidates = torch.randint(case.vocab, (case.rows, 3, case.candidates), generator=rng)
    hidden = torch.randn(case.rows, 3, case.rank, generator=rng).to(dtype)
    codebooks = (torch.randn(2, case.vocab, case.rank, generator=rng) / case.rank**0.25).to(dtype)
    return {
        "unary": unary[:, 1], "candidates": candidates[:, 1], "hidden": hidden[:, 1],
        "before": torch.randint(case.vocab, (case.rows,), generator=rng),
        "predecessors": codebooks[0], "successors": codebooks[1],
    }


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    return (op.candidate_scores(**given),)


def slow(
    *, unary: Tensor, candidates: Tensor, before: Tensor, hidden: Tensor, predecessors: Tensor, successors: Tensor
) -> tuple[Tensor, ...]:
    out = unary.double().clone()
    for row in range(out.shape[0]):
        for c in range(out.shape[1]):
            for k in range(hidden.shape[1]):
                edge = float(predecessors[before[row], k]) * float(hidden[row, k]) * float(successors[candidates[row, c], k])
                out[row, c] += edge
    return (out,)
