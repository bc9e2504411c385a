"""Inputs on which every implementation of lookup_drafts must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

SHORTEST = 6


@dataclass(frozen=True, slots=True)
class Case:
    """known: tokens of each row's sequence before the step. kept: of the step's, of which there are two more. vocab: few tokens
    make many matches. repeat: the newest tokens that stand there twice, at the least.
    """

    name: str
    known: tuple[int, ...]
    kept: tuple[int, ...]
    width: int = 64
    vocab: int = 3
    repeat: int = 0
    padding: int = 0
    most: int = 7


CASES = (
    Case("short", (0, 3, 5, 20), (1, 2, 1, 1)),
    Case("repeats", (40, 30, 60, 17), (3, 1, 2, 14), 80, vocab=50, repeat=12, most=15),
    Case("overlapping", (30, 50), (4, 1), vocab=1, padding=1),
    Case("many", tuple(range(11, 60, 3)), (1, 5, 2, 8) * 4 + (1,), vocab=2, padding=2, most=4),
    Case("full", (62, 59), (1, 4), vocab=2),
    Case("blocks", (3000, 1023, 1024, 1500), (2, 1, 1, 2000), 4100, vocab=40, repeat=9),
    Case("parts", (39_000,), (1,), 40_000, vocab=300, repeat=7),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Whatever stands behind a sequence is of the same few tokens."""
    rng = torch.Generator().manual_seed(sum(case.known))
    rows = len(case.known)

    def draw(*shape: int) -> Tensor:
        return torch.randint(0, case.vocab, shape, generator=rng)

    slots = torch.randperm(rows + 2, generator=rng)[:rows]
    slots[rows - case.padding :] = rows + 2
    history, kept, starts = draw(rows + 3, case.width), torch.tensor(case.kept), torch.tensor(case.known)
    tokens, next_tokens = draw(int(kept.sum()) + 2 * rows), draw(rows + 3)
    offsets = torch.tensor([0, *accumulate(count + 2 for count in case.kept)], dtype=torch.int32)
    for row in range(rows if case.repeat else 0):
        line, begin, count = history[slots[row]], int(offsets[row]), case.kept[row]
        text = torch.cat([line[: case.known[row]], tokens[begin : begin + count], next_tokens[slots[row], None]])
        at = int(torch.randint(case.repeat, len(text) - case.repeat, (1,), generator=rng)) if len(text) > 3 * case.repeat else 0
        line[at : at + case.repeat] = text[-case.repeat :].int()
    return {
        "history": history.int(), "matches": torch.full((rows + 3,), 1 << 33).index_fill(0, torch.tensor([rows + 2]), 0),
        "slots": slots, "offsets": offsets, "tokens": tokens, "starts": starts, "kept": kept, "next_tokens": next_tokens,
        "most": case.most,
    }


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    """Also what is kept by slot."""
    history, matches = given["history"].clone(), given["matches"].clone()
    slots, starts, kept = (given[name] for name in ("slots", "starts", "kept"))
    op.remember(history, matches, slots, given["offsets"], given["tokens"], starts, kept, given["next_tokens"])
    op.find_matches(history, matches, slots, starts, kept, SHORTEST)
    return op.continuations(history, matches, slots, starts + kept + 1, given["most"]), history, matches


def slow(
    *, history: Tensor, matches: Tensor, slots: Tensor, offsets: Tensor, tokens: Tensor, starts: Tensor, kept: Tensor,
    next_tokens: Tensor, most: int,
) -> tuple[Tensor, ...]:
    lines, found = history.tolist(), matches.tolist()
    drafts = []
    for row, slot in enumerate(slots.tolist()):
        if slot == len(lines) - 1:
            drafts.append([0] * most)
            continue
        line, start, begin, count = lines[slot], int(starts[row]), int(offsets[row]), int(kept[row])
        new = [*tokens[begin : begin + count].tolist(), int(next_tokens[slot])]
        line[start : start + len(new)] = new
        text = line[: start + len(new)]
        found[slot] = _slow_match(text)
        place = found[slot] % 2**32
        more = list(text)
        for j in range(most):
            more.append(more[place + j] if place else 0)
        drafts.append(more[len(text) :])
    return torch.tensor(drafts), torch.tensor(lines, dtype=torch.int32), torch.tensor(found)


def _slow_match(text: list[int]) -> int:
    for length in range(12, SHORTEST - 1, -1):
        suffix, ends = text[-length:], range(len(text) - 1, length - 1, -1)
        end = next((end for end in ends if text[end - length : end] == suffix), 0)
        if len(suffix) == length and end:
            return (length << 32) + end
    return 0
