"""Inputs on which every implementation of slot_lookup must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    rows: int
    groups: int = 1
    width: int = 5
    page_tokens: int = 16
    tokens: int = 1
    updates: int = 0
    padding: int = 0


CASES = (
    Case("one", 1),
    Case("updated", 3, updates=3),
    Case("groups", 2, groups=3, page_tokens=1, updates=6),
    Case("padded", 3, padding=2, updates=1),
    Case("several-tokens", 2, width=7, page_tokens=3, tokens=5, updates=9),
    Case("long", 2, width=2_500, updates=70),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """The last slot is padding's, and the last rows with it; idle updates name its first entry."""
    rng = torch.Generator().manual_seed(case.rows + case.width)
    slots = case.rows + 3
    entries = torch.randint(0, 999, (case.groups, slots, case.width), generator=rng)
    entries[:, -1] = 7
    used = torch.randperm(slots - 1, generator=rng)[: case.rows]
    used[case.rows - case.padding :] = slots - 1
    live = case.rows - case.padding
    own = (torch.arange(case.groups)[:, None] * slots + used[:live]) * case.width  # [G, live]
    places = (own[..., None] + torch.arange(case.width)).flatten()
    updated = places[torch.randperm(len(places), generator=rng)[: case.updates]]
    pages = torch.randint(1000, 2000, updated.shape, generator=rng)
    idle = torch.full((2,), (slots - 1) * case.width)
    starts = torch.randint(0, case.width * case.page_tokens - case.tokens + 1, (case.rows, 1), generator=rng)
    return {
        "entries": entries, "newest": torch.randint(0, 999, (slots,), generator=rng), "updated": torch.cat([updated, idle]),
        "pages": torch.cat([pages, torch.full((2,), 7)]), "slots": used,
        "positions": (starts + torch.arange(case.tokens)).flatten(), "page_tokens": case.page_tokens,
    }


def slow(
    *, entries: Tensor, updated: Tensor, pages: Tensor, newest: Tensor, slots: Tensor, positions: Tensor, page_tokens: int
) -> tuple[Tensor, ...]:
    groups, count, width = entries.shape
    new = entries.flatten().tolist()
    for index, page in zip(updated.tolist(), pages.tolist(), strict=True):
        new[index] = page
    starts = [[(g * count + slot) * width for slot in slots.tolist()] for g in range(groups)]
    tables = [[new[start : start + width] for start in of_group] for of_group in starts]
    tokens = len(positions) // len(slots)
    places = [
        [table[t // tokens][at // page_tokens] * page_tokens + at % page_tokens for t, at in enumerate(positions.tolist())]
        for table in tables
    ]
    tokens_now = torch.tensor([newest.tolist()[slot] for slot in slots.tolist()])
    return tokens_now, torch.tensor(tables), torch.tensor(places), torch.tensor(new).view_as(entries)


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    """Also the entries, which are updated in place."""
    given = dict(given, entries=given["entries"].clone())
    return (*op.slot_lookup(**given), given["entries"])
