"""Decode steps as CUDA graphs: one for each number of rows, captured at start and replayed with new numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.layers.batch import Batch, Pools
from headrace.models.decoder import Decoder
from headrace.plan.graph_rows import bucket_of
from headrace.runner.page_tables import PageTables
from headrace.runner.upload import Span, Upload
from headrace.types import Row

_WORDS_PER_ROW = 6
_WARM_UPS = 2
"""Runs before a capture: kernels are compiled and libraries allocate their workspace, which a capture does not allow."""


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """What changes from step to step, at fixed places in an upload; R rows, U = R times the number of cache groups."""

    slots: Span  # [R] int64
    positions: Span  # [R] int64, of the tokens that are computed
    sampled: Span  # [R] int64, of the tokens that are drawn
    lengths: Span  # [R] int32
    updated: Span  # [U] int64, indices of the page tables' entries
    pages: Span  # [U] int64, what they become


class DecodeGraph:
    """One step of `size` rows of one token, the newest of their slots: from the page updates to the logits.

    Rows that a step lacks are padding: they compute one token in the padding slot and page, and nobody reads their logits.
    """

    def __init__(self, size: int, tables: PageTables, context: int, device: torch.device) -> None:
        self.size = size
        self._tables = tables
        self._context = context
        self._updates = size * len(tables.entries)
        self._upload = Upload(_WORDS_PER_ROW * size + 2 * self._updates, device)
        self._graph = torch.cuda.CUDAGraph()
        self._row_offsets = torch.arange(size + 1, dtype=torch.int32, device=device)
        self._inputs = self._write(())
        self.logits: Tensor

    @property
    def where(self) -> Tensor:
        """[size] int64: the rows' slots."""
        return self._upload.tensor(self._inputs.slots)

    @property
    def sampled(self) -> Tensor:
        """[size] int64: positions of the tokens to draw."""
        return self._upload.tensor(self._inputs.sampled)

    def capture(self, decoder: Decoder, pools: Pools, next_tokens: Tensor, logits: Tensor, pool: Any) -> None:
        """Record the step, with `logits` [rows, vocab] as its output and its memory in `pool`, which other graphs share."""
        self.logits = logits[: self.size]

        def step() -> None:
            self._tables.apply(self._upload.tensor(self._inputs.updated), self._upload.tensor(self._inputs.pages))
            hidden = decoder(self._batch(next_tokens), pools)
            self.logits.copy_(decoder.scores(hidden))

        self._write(())
        self._upload.send()
        for _ in range(_WARM_UPS):
            step()
        with torch.cuda.graph(self._graph, pool=pool):
            step()

    def replay(self, rows: tuple[Row, ...]) -> None:
        """Run the step for `rows`, of which there are at most `size`."""
        self._write(rows)
        self._upload.send()
        self._graph.replay()

    def _write(self, rows: tuple[Row, ...]) -> DecodeInputs:
        upload, spare = self._upload, self.size - len(rows)
        upload.begin()
        starts = [row.start for row in rows] + [0] * spare
        slots = [row.slot for row in rows] + [self._tables.padding_slot] * spare
        indices, pages = self._tables.places((row.slot, update) for row in rows for update in row.page_updates)
        idle = self._updates - len(indices)
        return DecodeInputs(
            slots=upload.add(slots),
            positions=upload.add(starts),
            sampled=upload.add([start + 1 for start in starts]),
            lengths=upload.add([start + 1 for start in starts], torch.int32),
            updated=upload.add(indices + [self._tables.padding_entry] * idle),
            pages=upload.add(pages + [self._tables.padding_page] * idle),
        )

    def _batch(self, next_tokens: Tensor) -> Batch:
        at, tables = self._upload.tensor, self._tables
        slots, positions = at(self._inputs.slots), at(self._inputs.positions)
        return Batch(
            tokens=next_tokens[slots],
            positions=positions,
            row_offsets=self._row_offsets,
            slots=slots,
            lengths=at(self._inputs.lengths),
            page_tables=tuple(table[slots] for table in tables.entries),
            write_at=tables.write_at(slots, positions),
            host_row_tokens=(1,) * self.size,
            host_lengths=(self._context,) * self.size,
        )


class DecodeGraphs:
    """The graphs of all sizes, over one memory pool and one buffer of logits: only one of them runs at a time."""

    def __init__(
        self, sizes: tuple[int, ...], decoder: Decoder, pools: Pools, tables: PageTables, next_tokens: Tensor, logits: Tensor,
        context: int,
    ) -> None:
        self._sizes = sizes
        self._updates_per_row = len(tables.entries)
        free_before = torch.cuda.mem_get_info()[0]
        reserved_before = torch.cuda.memory_reserved()
        pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[int, DecodeGraph] = {}
        for size in reversed(sizes):  # the largest first: the smaller ones fit into its memory
            self._graphs[size] = DecodeGraph(size, tables, context, logits.device)
            self._graphs[size].capture(decoder, pools, next_tokens, logits, pool)
        torch.cuda.synchronize()
        self.pool_bytes = torch.cuda.memory_reserved() - reserved_before
        self.device_bytes = free_before - torch.cuda.mem_get_info()[0]

    def graph_for(self, rows: tuple[Row, ...]) -> DecodeGraph | None:
        """The graph that runs these rows; None if one has known tokens or draws none, or there is no graph so large."""
        plain = all(not row.tokens and row.samples and not row.drafts for row in rows)
        updates = sum(len(row.page_updates) for row in rows)
        size = bucket_of(len(rows), self._sizes) if plain and updates <= len(rows) * self._updates_per_row else None
        return None if size is None else self._graphs[size]
