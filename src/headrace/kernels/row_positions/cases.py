"""Inputs on which every implementation of row_positions must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    rows: int
    width: int
    padding: int = 0


CASES = (Case("one", 1, 1), Case("plain", 30, 1, 2), Case("five", 7, 5, 1), Case("eight", 40, 8, 3), Case("sixteen", 9, 16))


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Every third slot is frozen, and ends lie behind most rows."""
    rng = torch.Generator().manual_seed(case.rows * 16 + case.width)
    slots = case.rows + 3
    used = torch.randperm(slots - 1, generator=rng)[: case.rows]
    used[case.rows - case.padding :] = slots - 1
    positions, frozen = torch.randint(0, 2**33, (slots,), generator=rng) % 5000, torch.arange(slots) % 3 == 1
    positions[-1], frozen[-1] = 0, False
    return {
        "slots": used, "counts": torch.randint(0, case.width, (case.rows,), generator=rng), "positions": positions,
        "ends": positions + torch.randint(0, 3 * case.width, (slots,), generator=rng), "frozen": frozen, "width": case.width,
    }


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = op.row_positions(**given)
    return found


def slow(
    *, slots: Tensor, counts: Tensor, positions: Tensor, ends: Tensor, frozen: Tensor, width: int
) -> tuple[Tensor, ...]:
    live = [len(positions) - 1 if frozen[slot] else slot for slot in slots.tolist()]
    at, written = [], []
    for slot, count in zip(live, counts.tolist(), strict=True):
        for place in range(width):
            at.append(int(positions[slot]) + place)
            written.append(place <= count and at[-1] < int(ends[slot]))
    starts = [int(positions[slot]) for slot in live]
    found = (live, at, [start + width for start in starts], [start + 1 for start in starts], written)
    return tuple(torch.tensor(numbers) for numbers in found)
