"""Packs a plan's rows into the tensors of one forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headrace.layers.batch import Batch
from headrace.plan.uploads import step_words
from headrace.runner.page_tables import PageTables
from headrace.runner.upload import Upload
from headrace.types import Row


@dataclass(frozen=True, slots=True)
class SampledRows:
    """The S rows that end in a sampled token. last: their last tokens in the batch, None when that is every token."""

    slots: tuple[int, ...]
    where: Tensor  # [S] int64, the slots on the device
    positions: Tensor  # [S] int64, of the tokens to sample
    last: Tensor | None  # [S] int64


class Packer:
    """Packs steps of at most max_rows rows and max_tokens tokens; the batches' tensors are views of one buffer, `upload`, valid
    until its next use.
    """

    def __init__(self, tables: PageTables, max_tokens: int, max_rows: int, pages: int, device: torch.device) -> None:
        self._tables = tables
        self.upload = Upload(step_words(max_tokens, max_rows, pages), device)

    @property
    def nbytes(self) -> int:
        """Of the buffer on the device."""
        return self.upload.nbytes

    def pack(self, rows: tuple[Row, ...], next_tokens: Tensor) -> tuple[Batch, SampledRows | None]:
        """The batch of `rows`, in their order. next_tokens [slots]: each slot's next input, for rows that carry no tokens."""
        upload = self.upload
        upload.begin()
        counts = np.array([len(row.tokens) or 1 for row in rows])
        starts, slots = np.array([row.start for row in rows]), np.array([row.slot for row in rows])
        offsets = np.concatenate(([0], counts.cumsum()))
        within = np.arange(offsets[-1]) - offsets[:-1].repeat(counts)  # each token's place in its row
        positions = upload.add(starts.repeat(counts) + within)
        token_slots = upload.add(slots.repeat(counts))
        row_slots, row_offsets = upload.add(slots), upload.add(offsets, torch.int32)
        lengths = upload.add(starts + counts, torch.int32)
        known = upload.add([token for row in rows for token in row.tokens or (0,)])
        carried = [i for i, row in enumerate(rows) if not row.tokens]
        carried_at, carried_slots = upload.add(offsets[carried]), upload.add(slots[carried])
        sampled = [i for i, row in enumerate(rows) if row.samples]
        last, sampled_slots = upload.add(offsets[1:][sampled] - 1), upload.add(slots[sampled])
        sampled_positions = upload.add((starts + counts)[sampled])
        updates = [upload.add(part) for part in self._tables.places((r.slot, u) for r in rows for u in r.page_updates)]
        upload.send()

        at = upload.tensor
        if updates[0].count:
            self._tables.apply(at(updates[0]), at(updates[1]))
        tokens = at(known)
        if carried:
            tokens.index_copy_(0, at(carried_at), next_tokens[at(carried_slots)])
        most_pages = -(-int((starts + counts).max()) // self._tables.page_tokens)
        batch = Batch(
            tokens=tokens,
            positions=at(positions),
            row_offsets=at(row_offsets),
            slots=at(row_slots),
            lengths=at(lengths),
            page_tables=tuple(table[at(row_slots), :most_pages] for table in self._tables.entries),
            write_at=self._tables.write_at(at(token_slots), at(positions)),
            host_row_tokens=tuple(counts.tolist()),
        )
        if not sampled:
            return batch, None
        chosen = None if len(sampled) == offsets[-1] else at(last)
        host_slots = tuple(rows[i].slot for i in sampled)
        return batch, SampledRows(host_slots, at(sampled_slots), at(sampled_positions), chosen)
