"""Inputs on which every implementation of draw_candidates must agree, and the slow formula."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.precision import accumulation_dtype
from headrace.kernels.sample.odds import ODDS, Odds

_WORD = 2**64


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    rows: int
    candidates: int
    vocab: int = 248_320


CASES = (
    Case("one", 1, 1), Case("published", 9, 16), Case("odd", 5, 7, 40), Case("many", 6, 64), Case("none", 0, 16),
)
_PLACES = 3


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Every third slot is greedy, every second one free, and these keep all or a part of the candidates; scores have equals,
    and lie apart otherwise, so that rounding decides nothing.
    """
    rng = torch.Generator().manual_seed(case.candidates + case.rows)
    slots = case.rows + 2
    numbers, integers = torch.rand(slots, 6, generator=rng, dtype=torch.float64) + 0.5, torch.zeros(slots, 4, dtype=torch.int64)
    numbers[::3, 0] = 0
    numbers[:, 1], numbers[:, 2] = (torch.arange(slots) % 4 + 1) * 0.25, (torch.arange(slots) % 5 == 4) * 0.3
    integers[:, 1] = (torch.arange(slots) % 7 > 4) * 3
    integers[:, 0] = torch.randint(-(2**63), 2**63 - 1, (slots,), generator=rng)
    candidates = [torch.randperm(case.vocab, generator=rng)[: case.candidates] for _ in range(case.rows)]
    return {
        "scores": torch.randint(-20, 20, (case.rows, case.candidates), generator=rng).to(accumulation_dtype(dtype)) / 4,
        "candidates": torch.stack(candidates) if candidates else torch.zeros(0, case.candidates, dtype=torch.int64),
        "slots": torch.randperm(slots, generator=rng)[: case.rows],
        "positions": torch.randint(0, 10_000, (case.rows,), generator=rng), "integers": integers, "numbers": numbers,
        "ids": torch.full((slots, _PLACES, ODDS), -5, dtype=torch.int32),
        "chances": torch.full((slots, _PLACES, ODDS), -5.0, dtype=accumulation_dtype(dtype)),
        "counts": torch.full((slots, _PLACES), -5, dtype=torch.int32), "free": torch.arange(slots) % 2 == 1, "place": 1,
    }


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    """Also what is then known of the drafts, where something is."""
    kept = {name: given[name].clone() for name in ("ids", "chances", "counts", "free")}
    rows = {name: each for name, each in given.items() if name not in kept}
    tokens = op.draw_candidates(**rows, odds=Odds(**kept))
    there = torch.arange(ODDS, device=tokens.device) < kept["counts"][..., None]
    return tokens, kept["counts"], torch.where(there, kept["ids"], 0), torch.where(there, kept["chances"], 0)


def slow(
    *, scores: Tensor, candidates: Tensor, slots: Tensor, positions: Tensor, integers: Tensor, numbers: Tensor, ids: Tensor,
    chances: Tensor, counts: Tensor, free: Tensor, place: int,
) -> tuple[Tensor, ...]:
    drawn, known = [], counts.clone()
    kept_ids, kept_chances = torch.zeros_like(ids), torch.zeros(chances.shape, dtype=torch.float64)
    for row, (slot, position) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True)):
        seed, temperature = int(integers[slot, 0]), float(numbers[slot, 0])
        odds = dict.fromkeys(range(scores.shape[1]), 1.0)
        known[slot, place] = 0
        if free[slot] and temperature:
            odds = _odds(scores[row].tolist(), candidates[row].tolist(), integers[slot].tolist(), numbers[slot].tolist())
            known[slot, place] = scores.shape[1]
            kept_ids[slot, place, : scores.shape[1]] = candidates[row]
            for at, chance in odds.items():
                kept_chances[slot, place, at] = chance
        best, token = -math.inf, -1
        for at, (score, candidate) in enumerate(zip(scores[row].tolist(), candidates[row].tolist(), strict=True)):
            found = score / temperature + _gumbel(seed, position, candidate) if temperature else score
            if at in odds and found > best:
                best, token = found, candidate
        drawn.append(token)
    return torch.tensor(drawn, dtype=torch.int64), known, kept_ids, kept_chances


def _odds(scores: list[float], candidates: list[int], integers: list[int], numbers: list[float]) -> dict[int, float]:
    """Of a row's candidates, by place, those that are kept, with their probabilities."""
    (_, top_k, *_), (temperature, top_p, min_p, *_) = integers, numbers
    order = sorted(range(len(scores)), key=lambda at: (-scores[at], candidates[at]))[: top_k or None]
    masses = {at: math.exp((scores[at] - scores[order[0]]) / temperature) for at in order}
    whole, before, kept = sum(masses.values()), 0.0, {}
    for at, mass in masses.items():
        if (top_p == 1 or before < top_p * whole) and mass >= min_p:
            kept[at] = mass
        before += mass
    return {at: mass / sum(kept.values()) for at, mass in kept.items()}


def _gumbel(seed: int, position: int, token: int) -> float:
    bits = _mix(_mix(_mix(seed + 0x9E3779B97F4A7C15) + position) + token * 0x9E3779B97F4A7C15)
    return -math.log(-math.log1p(-((bits >> 11) + 1) / 2**53))


def _mix(x: int) -> int:
    x %= _WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % _WORD
    return x ^ (x >> 31)
