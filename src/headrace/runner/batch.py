"""Packs a plan's rows into the tensors of one forward pass."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.cache.layout import CacheLayout
from headrace.layers.batch import Batch
from headrace.types import Row


class Packer:
    """Keeps every slot's page lists on the device, brought up to date by the rows' page updates.

    Entries of a slot's earlier owner stay behind its successor's: they are valid page ids past the successor's length.
    """

    def __init__(self, layout: CacheLayout, context: int, device: torch.device) -> None:
        self._page_tokens = layout.page_tokens
        self._device = device
        pages_per_sequence = -(-context // layout.page_tokens)
        self._tables = tuple(
            torch.zeros(layout.slots, pages_per_sequence, dtype=torch.int64, device=device) for _ in layout.groups
        )

    def pack(self, rows: tuple[Row, ...], next_tokens: Tensor) -> Batch:
        """The batch of `rows`, in their order. next_tokens [slots]: each slot's next input, for rows that carry no tokens."""
        self._apply_updates(rows)
        counts = [len(row.tokens) or 1 for row in rows]
        lengths = [row.start + count for row, count in zip(rows, counts, strict=True)]
        slots = self._tensor([row.slot for row in rows])
        positions = self._positions(rows, counts, lengths)
        row_of = None if max(counts) == 1 else torch.repeat_interleave(self._tensor(counts))
        most_pages = -(-max(lengths) // self._page_tokens)
        page_tables = tuple(table[slots, :most_pages] for table in self._tables)
        return Batch(
            tokens=self._tokens(rows, counts, next_tokens),
            positions=positions,
            row_offsets=self._offsets(counts),
            slots=slots,
            lengths=self._tensor(lengths, torch.int32),
            page_tables=page_tables,
            write_at=tuple(self._write_at(table, positions, row_of) for table in page_tables),
            host_row_tokens=tuple(counts),
            host_lengths=tuple(lengths),
        )

    def _apply_updates(self, rows: tuple[Row, ...]) -> None:
        for row in rows:
            for update in row.page_updates:
                entries = self._tables[update.group][row.slot, update.first : update.first + len(update.pages)]
                entries.copy_(torch.tensor(update.pages, dtype=torch.int64))

    def _tokens(self, rows: tuple[Row, ...], counts: list[int], next_tokens: Tensor) -> Tensor:
        """[T]: the rows' own tokens, and the slot's next token where a row has none."""
        flat: list[int] = []
        carried_at, carried_slots = [], []
        for row in rows:
            if not row.tokens:
                carried_at.append(len(flat))
                carried_slots.append(row.slot)
            flat.extend(row.tokens or (0,))
        carried = next_tokens[self._tensor(carried_slots)]
        if len(carried_at) == len(flat):
            return carried
        tokens = self._tensor(flat)
        if carried_at:
            tokens[self._tensor(carried_at)] = carried
        return tokens

    def _positions(self, rows: tuple[Row, ...], counts: list[int], lengths: list[int]) -> Tensor:
        if max(counts) == 1:
            return self._tensor([row.start for row in rows])
        spans = [torch.arange(row.start, end) for row, end in zip(rows, lengths, strict=True)]
        return torch.cat(spans).to(self._device)

    def _offsets(self, counts: list[int]) -> Tensor:
        offsets = [0]
        for count in counts:
            offsets.append(offsets[-1] + count)
        return self._tensor(offsets, torch.int32)

    def _write_at(self, page_table: Tensor, positions: Tensor, row_of: Tensor | None) -> Tensor:
        """[T]: where each token's K and V go, as page * page_tokens + offset."""
        if row_of is None:
            row_of = torch.arange(len(positions), device=self._device)
        pages = page_table[row_of, positions // self._page_tokens]
        return pages * self._page_tokens + positions % self._page_tokens

    def _tensor(self, values: list[int], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)
