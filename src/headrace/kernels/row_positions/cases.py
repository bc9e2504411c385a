"""Inputs on which every implementation of row_positions must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """widths: tokens of each row."""

    name: str
    widths: tuple[int, ...]
    padding: int = 0


CASES = (
    Case("one", (1,)), Case("plain", (1,) * 30, 2), Case("uneven", (5, 1, 1, 8, 3, 16, 2), 1), Case("eight", (8,) * 40, 3),
    Case("sixteen", (16,) * 9),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Every third slot is frozen, and ends lie behind most rows."""
    rows = len(case.widths)
    rng = torch.Generator().manual_seed(sum(case.widths) + rows)
    slots, widths = rows + 3, torch.tensor(case.widths)
    used = torch.randperm(slots - 1, generator=rng)[:rows]
    used[rows - case.padding :] = slots - 1
    positions, frozen = torch.randint(0, 2**33, (slots,), generator=rng) % 5000, torch.arange(slots) % 3 == 1
    positions[-1], frozen[-1] = 0, False
    return {
        "slots": used, "offsets": torch.tensor([0, *accumulate(case.widths)], dtype=torch.int32),
        "counts": torch.randint(0, 99, (rows,), generator=rng) % widths, "positions": positions,
        "ends": positions + torch.randint(0, 20, (slots,), generator=rng), "frozen": frozen, "tokens": sum(case.widths),
    }


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = op.row_positions(**given)
    return found


def slow(
    *, slots: Tensor, offsets: Tensor, counts: Tensor, positions: Tensor, ends: Tensor, frozen: Tensor, tokens: int
) -> tuple[Tensor, ...]:
    live = [len(positions) - 1 if frozen[slot] else slot for slot in slots.tolist()]
    starts = [int(positions[slot]) for slot in live]
    lengths, at, owners, written = [], [], [], []
    for row, (slot, count) in enumerate(zip(live, counts.tolist(), strict=True)):
        width = int(offsets[row + 1]) - int(offsets[row])
        lengths.append(starts[row] + width)
        for place in range(width):
            at.append(starts[row] + place)
            owners.append(slot)
            written.append(place <= count and at[-1] < int(ends[slot]))
    return tuple(torch.tensor(numbers) for numbers in (live, starts, lengths, at, owners, written))
