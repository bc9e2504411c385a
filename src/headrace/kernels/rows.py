"""Packed rows as blocks: rows with the same number of tokens compute together as [B, n, ...], whatever their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowGroup:
    """B rows of n tokens each. `rows` selects them among the batch's rows, `at` their tokens among its tokens."""

    count: int
    tokens: int
    rows: slice | Tensor
    at: slice | Tensor

    def take(self, x: Tensor) -> Tensor:
        """[T, ...] -> [B, n, ...] of this group."""
        return x[self.at].view(self.count, self.tokens, *x.shape[1:])

    def put(self, out: Tensor, y: Tensor) -> None:
        """Write y [B, n, ...] to this group's tokens of out [T, ...]."""
        out[self.at] = y.flatten(0, 1).to(out.dtype)


def group_rows(row_tokens: Sequence[int], device: torch.device) -> tuple[RowGroup, ...]:
    """Groups of a batch whose row r has row_tokens[r] tokens, one for each distinct number, in order of appearance."""
    members: dict[int, list[int]] = {}
    starts, total = [], 0
    for row, tokens in enumerate(row_tokens):
        members.setdefault(tokens, []).append(row)
        starts.append(total)
        total += tokens
    return tuple(_group(tokens, rows, starts, device) for tokens, rows in members.items())


def _group(tokens: int, rows: list[int], starts: list[int], device: torch.device) -> RowGroup:
    first, count = rows[0], len(rows)
    if rows[-1] - first == count - 1:  # neighbours: a slice spares the copies
        begin = starts[first]
        return RowGroup(count, tokens, slice(first, first + count), slice(begin, begin + count * tokens))
    index = torch.tensor(rows, device=device)
    begins = torch.tensor([starts[r] for r in rows], device=device)
    at = (begins[:, None] + torch.arange(tokens, device=device)).flatten()
    return RowGroup(count, tokens, index, at)
