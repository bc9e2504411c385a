"""Inputs on which every implementation of draw_candidates must agree, and the slow formula."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.precision import accumulation_dtype

_WORD = 2**64


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    rows: int
    candidates: int
    vocab: int = 248_320


CASES = (
    Case("one", 1, 1), Case("published", 9, 16), Case("odd", 5, 7, 40), Case("many", 3, 300), Case("none", 0, 16),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Every third slot is greedy; scores have equals, and lie apart otherwise, so that rounding decides nothing."""
    rng = torch.Generator().manual_seed(case.candidates + case.rows)
    slots = case.rows + 2
    numbers, integers = torch.rand(slots, 6, generator=rng, dtype=torch.float64) + 0.5, torch.zeros(slots, 4, dtype=torch.int64)
    numbers[::3, 0] = 0
    integers[:, 0] = torch.randint(-(2**63), 2**63 - 1, (slots,), generator=rng)
    candidates = [torch.randperm(case.vocab, generator=rng)[: case.candidates] for _ in range(case.rows)]
    return {
        "scores": torch.randint(-20, 20, (case.rows, case.candidates), generator=rng).to(accumulation_dtype(dtype)) / 4,
        "candidates": torch.stack(candidates) if candidates else torch.zeros(0, case.candidates, dtype=torch.int64),
        "slots": torch.randperm(slots, generator=rng)[: case.rows],
        "positions": torch.randint(0, 10_000, (case.rows,), generator=rng), "integers": integers, "numbers": numbers,
    }


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    return (op.draw_candidates(**given),)


def slow(
    *, scores: Tensor, candidates: Tensor, slots: Tensor, positions: Tensor, integers: Tensor, numbers: Tensor
) -> tuple[Tensor, ...]:
    drawn = []
    for row, (slot, position) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True)):
        seed, temperature = int(integers[slot, 0]), float(numbers[slot, 0])
        best, token = -math.inf, -1
        for score, candidate in zip(scores[row].tolist(), candidates[row].tolist(), strict=True):
            found = score / temperature + _gumbel(seed, position, candidate) if temperature else score
            if found > best:
                best, token = found, candidate
        drawn.append(token)
    return (torch.tensor(drawn, dtype=torch.int64),)


def _gumbel(seed: int, position: int, token: int) -> float:
    bits = _mix(_mix(_mix(seed + 0x9E3779B97F4A7C15) + position) + token * 0x9E3779B97F4A7C15)
    return -math.log(-math.log1p(-((bits >> 11) + 1) / 2**53))


def _mix(x: int) -> int:
    x %= _WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % _WORD
    return x ^ (x >> 31)
