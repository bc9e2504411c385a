"""Inputs on which every implementation of row_places must agree, and the slow formula."""

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
    groups: int = 1
    page_tokens: int = 16


CASES = (
    Case("one", (1,)), Case("uneven", (5, 1, 1, 8, 3, 16, 2), 2), Case("pages-of-one", (2, 4), 3, 1),
    Case("eight", (8,) * 30, page_tokens=48),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Places that are not written lie behind the tables, some of them."""
    rng = torch.Generator().manual_seed(sum(case.widths))
    rows, width, tokens = len(case.widths), 9, sum(case.widths)
    starts = torch.randint(0, width * case.page_tokens, (rows,), generator=rng)
    at = torch.cat([start + torch.arange(count) for start, count in zip(starts, case.widths, strict=True)])
    written = (torch.randint(0, 4, (tokens,), generator=rng) > 0) & (at < width * case.page_tokens)
    drafts = torch.randint(0, 99, (tokens,), generator=rng)
    most = max(1, max(case.widths) - 1)
    return {
        "tables": torch.randint(0, 999, (case.groups, rows, width), generator=rng),
        "newest": torch.randint(0, 99, (rows,), generator=rng),
        "offsets": torch.tensor([0, *accumulate(case.widths)], dtype=torch.int32),
        "at": at.clamp(max=width * case.page_tokens - 1),
        "written": written, "drafts": torch.where(torch.randint(0, 2, (tokens,), generator=rng) > 0, drafts, -1),
        "proposed": torch.randint(100, 199, (rows + 3, most), generator=rng),
        "slots": torch.randperm(rows + 3, generator=rng)[:rows],
        "nowhere": 5000 + torch.arange(case.groups), "page_tokens": case.page_tokens,
    }


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = op.row_places(**given)
    return found


def slow(
    *, tables: Tensor, newest: Tensor, offsets: Tensor, at: Tensor, written: Tensor, drafts: Tensor, proposed: Tensor,
    slots: Tensor, nowhere: Tensor, page_tokens: int,
) -> tuple[Tensor, ...]:
    tokens, places = drafts.tolist(), [[int(place)] * len(at) for place in nowhere]
    for row in range(len(newest)):
        first = int(offsets[row])
        for t in range(first + 1, int(offsets[row + 1])):
            tokens[t] = int(proposed[slots[row], t - first - 1]) if tokens[t] < 0 else tokens[t]
        tokens[first] = int(newest[row])
        for t in range(int(offsets[row]), int(offsets[row + 1])):
            for group, table in enumerate(tables):
                if written[t]:
                    places[group][t] = int(table[row, int(at[t]) // page_tokens]) * page_tokens + int(at[t]) % page_tokens
    return torch.tensor(tokens), torch.tensor(places)
