"""Packed rows: the rows of a step lie one behind the other in [T, ...]. What their lengths imply is computed once a step.

References compute rows of equal length together as blocks [B, n, ...]; kernels walk over pieces of rows by tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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


@dataclass(frozen=True, slots=True)
class PieceTable:
    """Rows cut into pieces of at most `size` tokens, none of which crosses a row: tables of int32 on the device.

    rows [N, 4]: (row of the batch, its first token, its tokens, its first piece). pieces [M, 4]: (row of the batch, its first
    token, its tokens, those before the piece).
    """

    size: int
    rows: Tensor
    pieces: Tensor


class PackedRows:
    """Rows of row_tokens[r] tokens each, one behind the other. One object serves all layers of a step."""

    def __init__(self, row_tokens: Sequence[int], device: torch.device) -> None:
        self.row_tokens = tuple(row_tokens)
        self.device = device
        self._tables: dict[tuple[int, int], PieceTable | None] = {}

    @cached_property
    def groups(self) -> tuple[RowGroup, ...]:
        """One for each distinct number of tokens, in order of appearance."""
        members: dict[int, list[int]] = {}
        for row, tokens in enumerate(self.row_tokens):
            members.setdefault(tokens, []).append(row)
        starts = self._starts()
        return tuple(_group(tokens, rows, starts, self.device) for tokens, rows in members.items())

    @property
    def singles(self) -> RowGroup | None:
        """The rows of one token."""
        return next((group for group in self.groups if group.tokens == 1), None)

    def pieces(self, size: int, shortest: int = 1) -> PieceTable | None:
        """The rows of `shortest` tokens and more in pieces of `size`; None where there is no such row."""
        if (size, shortest) not in self._tables:
            self._tables[size, shortest] = self._cut(size, shortest)
        return self._tables[size, shortest]

    def _starts(self) -> list[int]:
        starts, total = [], 0
        for tokens in self.row_tokens:
            starts.append(total)
            total += tokens
        return starts

    def _cut(self, size: int, shortest: int) -> PieceTable | None:
        rows: list[tuple[int, int, int, int]] = []
        pieces: list[tuple[int, int, int, int]] = []
        for row, (start, tokens) in enumerate(zip(self._starts(), self.row_tokens, strict=True)):
            if tokens >= shortest:
                rows.append((row, start, tokens, len(pieces)))
                pieces += [(row, start, tokens, before) for before in range(0, tokens, size)]
        if not rows:
            return None
        both = _sent(torch.tensor(rows + pieces, dtype=torch.int32), self.device)
        return PieceTable(size, both[: len(rows)], both[len(rows) :])


def _group(tokens: int, rows: list[int], starts: list[int], device: torch.device) -> RowGroup:
    first, count = rows[0], len(rows)
    if rows[-1] - first == count - 1:  # neighbours: a slice spares the copies
        begin = starts[first]
        return RowGroup(count, tokens, slice(first, first + count), slice(begin, begin + count * tokens))
    index, begins = _sent(torch.tensor([rows, [starts[r] for r in rows]]), device)
    at = (begins[:, None] + torch.arange(tokens, device=device)).flatten()
    return RowGroup(count, tokens, index, at)


def _sent(x: Tensor, device: torch.device) -> Tensor:
    """x on the device, without waiting for it."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)
