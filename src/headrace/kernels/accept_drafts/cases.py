"""Inputs on which every implementation of accept_drafts must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.accept_drafts.slots import DraftSlots, Drawn
from headrace.kernels.sample.slots import ENDS_MESSAGE, GENERATED_ONCE

VOCAB = 20


@dataclass(frozen=True, slots=True)
class Case:
    """width: the most tokens that a row may yield. padding: the last rows. by_place: the first tokens of all rows are drawn
    first, then the second ones. certain: tokens of each row before its drafts.
    """

    name: str
    rows: int
    width: int
    padding: int = 0
    counted: bool = False
    deferred: bool = True
    by_place: bool = False
    certain: int = 1


CASES = (
    Case("plain", 3, 1, padding=1, counted=True, deferred=False),
    Case("pending", 2, 1),
    Case("eight", 40, 8),
    Case("eight-counted", 40, 8, padding=3, counted=True, by_place=True),
    Case("behind-prompts", 17, 4, certain=3),
    Case("sixteen", 64, 16, padding=5, by_place=True),
)
_STATE = tuple(f.name for f in fields(DraftSlots))


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Most drafts are right. Slots' messages end at any place of a row, by either kind of end. Behind what counts of a row the
    next one follows at once.
    """
    rng = torch.Generator().manual_seed(case.rows * 16 + case.width)

    def draw(most: int, *shape: int) -> Tensor:
        return torch.randint(0, most, shape, generator=rng)

    slots, counts = case.rows + 2, draw(case.width, case.rows)
    used = torch.randperm(slots - 1, generator=rng)[: case.rows]
    used[case.rows - case.padding :] = slots - 1
    ends = (counts + case.certain).cumsum(0)
    last = ends - counts - 1
    tokens = draw(VOCAB, int(ends[-1]))
    begins = torch.arange(case.rows) if case.by_place else (counts + 1).cumsum(0) - counts - 1
    stride = case.rows if case.by_place else 1
    drawn = draw(VOCAB, case.rows * case.width if case.by_place else int((counts + 1).sum()))
    for row, count in enumerate(counts.tolist()):
        right = torch.where(draw(6, count) > 0, drawn[begins[row] + stride * torch.arange(count)], draw(VOCAB, count))
        tokens[last[row] + 1 : last[row] + 1 + count] = right
    at = draw(500, slots)
    marks = torch.where(draw(12, slots, VOCAB) == 0, ENDS_MESSAGE, 0) + GENERATED_ONCE * draw(3, slots, VOCAB)
    return {
        "drawn": drawn, "begins": begins.int(), "stride": stride, "most": case.width, "tokens": tokens, "last": last.int(),
        "counts": counts, "slots": used, "row_positions": at[used], "positions": at, "ends": at + 1 + draw(12, slots),
        "frozen": torch.zeros(slots, dtype=torch.bool), "pending": draw(4, slots).int(), "parity": draw(2, slots).int(),
        "next_tokens": draw(VOCAB, slots), "integers": draw(90, slots, 4), "marks": marks.int(), "counted": case.counted,
        "deferred": case.deferred,
    }


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    """Also the slots' tensors, which are updated in place."""
    kept = {name: given[name].clone() for name in _STATE}
    rows = (given[name] for name in ("tokens", "last", "counts", "slots", "row_positions"))
    drawn = Drawn(given["drawn"], given["begins"], given["stride"], given["most"])
    emitted = op.accept_drafts(drawn, *rows, DraftSlots(**kept), counted=given["counted"], deferred=given["deferred"])
    return emitted, *(kept[name] for name in _STATE)


def slow(
    *, drawn: Tensor, begins: Tensor, stride: int, most: int, tokens: Tensor, last: Tensor, counts: Tensor, slots: Tensor,
    row_positions: Tensor, positions: Tensor, ends: Tensor, frozen: Tensor, pending: Tensor, parity: Tensor,
    next_tokens: Tensor, integers: Tensor, marks: Tensor, counted: bool, deferred: bool,
) -> tuple[Tensor, ...]:
    kept: dict[str, Any] = {
        "positions": positions.tolist(), "ends": ends.tolist(), "frozen": frozen.tolist(), "pending": pending.tolist(),
        "parity": parity.tolist(), "next_tokens": next_tokens.tolist(), "integers": integers.tolist(), "marks": marks.tolist(),
    }
    emitted = []
    for row, slot in enumerate(slots.tolist()):
        found, ended, token = 0, False, -1
        while not ended and found <= int(counts[row]) and (found == 0 or token == int(tokens[int(last[row]) + found])):
            token = int(drawn[int(begins[row]) + found * stride])
            found += 1
            ended = bool(int(marks[slot, token]) & ENDS_MESSAGE) or int(row_positions[row]) + found >= int(ends[slot])
        emitted.append(found)
        if slot == len(positions) - 1:
            continue
        kept["positions"][slot], kept["frozen"][slot] = int(row_positions[row]) + found, ended
        if deferred:
            kept["pending"][slot], kept["parity"][slot] = found - 1, 1 - kept["parity"][slot]
        if not counted:
            kept["next_tokens"][slot] = token
            kept["integers"][slot][3] += found
    return torch.tensor(emitted), *(torch.tensor(kept[name]) for name in _STATE)
