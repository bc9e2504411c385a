"""Inputs on which every implementation of top_tokens must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """levels: so many different logits there are at most."""

    name: str
    rows: int
    vocab: int
    count: int
    levels: int = 1 << 20


CASES = (
    Case("one", 1, 1, 1), Case("all", 3, 16, 16), Case("groups", 3, 64 * 40, 16), Case("rest", 5, 64 * 20 + 37, 16),
    Case("equals", 4, 64 * 30 + 1, 16, levels=9), Case("few", 2, 200, 3), Case("none", 0, 100, 2),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(case.vocab)
    drawn = torch.randint(case.levels, (case.rows, case.vocab), generator=rng) - case.levels // 2
    return {"logits": (drawn / 1024).to(dtype), "count": case.count}


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    """The values, those of the ids, and how many ids are different."""
    values, ids = op.top_tokens(**given)
    ranked = ids.sort(1).values
    return values, given["logits"].gather(1, ids), 1 + (ranked.diff(dim=1) > 0).sum(1)


def slow(*, logits: Tensor, count: int) -> tuple[Tensor, ...]:
    best = [sorted(row, reverse=True)[:count] for row in logits.double().tolist()]
    values = torch.tensor(best, dtype=torch.float64).reshape(-1, count)
    return values, values, torch.full((len(values),), count)
