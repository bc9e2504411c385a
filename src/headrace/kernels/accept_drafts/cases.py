"""Inputs on which every implementation of accept_drafts must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.accept_drafts.slots import DraftSlots
from headrace.kernels.sample.slots import ENDS_MESSAGE, GENERATED_ONCE

VOCAB = 20


@dataclass(frozen=True, slots=True)
class Case:
    """padding: the last rows. transposed: drafts lie row by row."""

    name: str
    rows: int
    width: int
    padding: int = 0
    counted: bool = False
    deferred: bool = True
    transposed: bool = False


CASES = (
    Case("plain", 3, 1, padding=1, counted=True, deferred=False),
    Case("pending", 2, 1),
    Case("eight", 40, 8),
    Case("eight-counted", 40, 8, padding=3, counted=True),
    Case("row-by-row", 17, 4, transposed=True),
    Case("sixteen", 64, 16, padding=5),
)
_STATE = tuple(f.name for f in fields(DraftSlots))


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Most drafts are right. Slots' messages end at any place of a row, by either kind of end."""
    rng = torch.Generator().manual_seed(case.rows * 16 + case.width)

    def draw(most: int, *shape: int) -> Tensor:
        return torch.randint(0, most, shape, generator=rng)

    slots = case.rows + 2
    used = torch.randperm(slots - 1, generator=rng)[: case.rows]
    used[case.rows - case.padding :] = slots - 1
    tokens = draw(VOCAB, case.width, case.rows)
    drafts = torch.where(draw(6, case.width - 1, case.rows) == 0, (tokens[:-1] + 1) % VOCAB, tokens[:-1])
    drafts = drafts.T.contiguous().T if case.transposed else drafts
    at = draw(500, slots)
    marks = torch.where(draw(12, slots, VOCAB) == 0, ENDS_MESSAGE, 0) + GENERATED_ONCE * draw(3, slots, VOCAB)
    return {
        "tokens": tokens, "drafts": drafts, "counts": draw(case.width, case.rows), "slots": used, "positions": at[used] + 1,
        "next_positions": at, "ends": at + 1 + draw(12, slots), "frozen": torch.zeros(slots, dtype=torch.bool),
        "pending": draw(4, slots).int(), "parity": draw(2, slots).int(), "next_tokens": draw(VOCAB, slots),
        "integers": draw(90, slots, 4), "marks": marks.int(), "counted": case.counted, "deferred": case.deferred,
    }


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    """Also the slots' tensors, which are updated in place."""
    kept = {name: given["next_positions" if name == "positions" else name].clone() for name in _STATE}
    rows = (given[name] for name in ("tokens", "drafts", "counts", "slots", "positions"))
    emitted = op.accept_drafts(*rows, DraftSlots(**kept), counted=given["counted"], deferred=given["deferred"])
    return emitted, *(kept[name] for name in _STATE)


def slow(
    *, tokens: Tensor, drafts: Tensor, counts: Tensor, slots: Tensor, positions: Tensor, next_positions: Tensor, ends: Tensor,
    frozen: Tensor, pending: Tensor, parity: Tensor, next_tokens: Tensor, integers: Tensor, marks: Tensor, counted: bool,
    deferred: bool,
) -> tuple[Tensor, ...]:
    kept = {
        "positions": next_positions.tolist(), "ends": ends.tolist(), "frozen": frozen.tolist(), "pending": pending.tolist(),
        "parity": parity.tolist(), "next_tokens": next_tokens.tolist(), "integers": integers.tolist(), "marks": marks.tolist(),
    }
    emitted = []
    for row, slot in enumerate(slots.tolist()):
        found, ended = 0, False
        while not ended:
            token = int(tokens[found, row])
            ended = bool(int(marks[slot, token]) & ENDS_MESSAGE) or int(positions[row]) + found >= int(ends[slot])
            found += 1
            if found > int(counts[row]) or token != int(drafts[found - 1, row]):
                break
        emitted.append(found)
        if slot == len(next_positions) - 1:
            continue
        kept["positions"][slot], kept["frozen"][slot] = int(positions[row]) + found - 1, ended
        if deferred:
            kept["pending"][slot], kept["parity"][slot] = found - 1, 1 - kept["parity"][slot]
        if not counted:
            kept["next_tokens"][slot] = int(tokens[found - 1, row])
            kept["integers"][slot][3] += found
    return torch.tensor(emitted), *(torch.tensor(kept[name]) for name in _STATE)
