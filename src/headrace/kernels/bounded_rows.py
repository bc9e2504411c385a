"""Packed rows of a captured step: how many tokens each has is the device's to know, and changes from replay to replay."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from headrace.kernels.rows import PackedRows, PieceTable, RowGroup


class BoundedRows(PackedRows):
    """Rows of row_offsets [R + 1] int32, of at most `tokens` tokens together. The last `longer` of them may have any number,
    none too; those before have one or none. On the host are only these bounds, so that tables have entries to spare: pieces
    without tokens, and places of tokens that are -1.
    """

    def __init__(self, row_offsets: Tensor, longer: int, tokens: int) -> None:
        self._offsets, self._singles, self._longer = row_offsets.long(), len(row_offsets) - 1 - longer, longer
        super().__init__((1,) * self._singles + (tokens,) * longer, row_offsets.device)
        self._tokens = tokens

    @property
    def groups(self) -> tuple[RowGroup, ...]:
        raise NotImplementedError("rows of equal length are not known before a captured step runs")

    @cached_property
    def singles(self) -> RowGroup | None:
        """The rows that may have one token, at -1 where they have none."""
        if not self._singles:
            return None
        begins, ends = self._offsets[: self._singles], self._offsets[1 : self._singles + 1]
        rows = torch.arange(self._singles, device=self.device)
        return RowGroup(self._singles, 1, rows, torch.where(ends > begins, begins, -1))

    def _cut(self, size: int, shortest: int) -> PieceTable | None:
        """Of the last rows, however few tokens they have. A piece without tokens lies behind the end of a row without any."""
        first, last = self._singles, len(self._offsets) - 1
        starts, counts = self._offsets[first:last], self._offsets[first + 1 :] - self._offsets[first:last]
        ends = ((counts + (size - 1)) // size).cumsum(0)  # of pieces
        begins = ends - (counts + (size - 1)) // size
        rows = torch.arange(first, last, device=self.device)
        most = (self._tokens + self._longer * (size - 1)) // size
        piece = torch.arange(most, device=self.device)
        row = (ends <= piece[:, None]).sum(1)
        there, row = row < self._longer, row.clamp(max=self._longer - 1)
        before = torch.where(there, (piece - begins[row]) * size, size)
        pieces = torch.stack((rows[row], starts[row], torch.where(there, counts[row], 0), before), 1)
        return PieceTable(size, torch.stack((rows, starts, counts, begins), 1).int(), pieces.int())
