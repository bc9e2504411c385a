"""Steps of rows with drafts as CUDA graphs: for each number of rows one without drafts, and one of as many as rows may have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.accept_drafts import DraftSlots
from headrace.kernels.row_positions import row_positions
from headrace.kernels.slot_lookup import slot_lookup
from headrace.layers.batch import Batch, Deferred, Pools
from headrace.models.decoder import Decoder
from headrace.plan.graph_rows import bucket_of
from headrace.runner.draft_batch import Runs
from headrace.runner.graphs import memory_left
from headrace.runner.page_tables import PageTables
from headrace.runner.sampler import Sampler
from headrace.runner.upload import Span, Upload
from headrace.runner.verify import DrawnRuns, Verifier
from headrace.types import Row

_WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class DraftInputs:
    """What changes from step to step, at fixed places in an upload; R rows of W tokens, U page updates at most."""

    slots: Span  # [R] int64
    drafts: Span  # [R * (W - 1)] int64
    counts: Span  # [R] int64, of drafts
    updated: Span  # [U] int64, indices of the page tables' entries
    pages: Span  # [U] int64, what they become


@dataclass(frozen=True, slots=True)
class DraftCaptured:
    """What graphs read and write. captured: draws from logits in the model's type. One memory pool serves all graphs."""

    decoder: Decoder
    pools: Pools
    tables: PageTables
    slots: DraftSlots
    sampler: Sampler
    captured: Verifier
    eager: Verifier
    memory: Any  # torch's handle of the pool


class DraftGraph:
    """A step of `size` rows of `width` tokens: the next input of each row's slot, and its drafts.

    A row with fewer drafts has others behind them that count for nothing: nobody looks at what they compute, and their keys and
    values go to the padding page. Rows that a step lacks are padding. With a width of 1 the step is an engine's without drafts.
    Drawing, accepting and moving on is a graph of its own, of two kinds, or left out for rows that the host must help to draw.
    """

    def __init__(self, size: int, width: int, over: DraftCaptured) -> None:
        self.size, self.width = size, width
        self._over, self._tables = over, over.tables
        self.most_updates = size * updates_of(over.tables, width)
        device = over.sampler.device
        self._upload = Upload(size * (1 + width) + 2 * self.most_updates, device)
        self._row_offsets = torch.arange(0, size * width + 1, width, dtype=torch.int32, device=device)
        self._hidden_at = torch.arange(size * width, device=device).view(size, width).T  # [width, size]
        certain = torch.ones(size, dtype=torch.int32, device=device)
        self._deferred = Deferred(certain, size, size * width, self._row_offsets[:0].long()) if width > 1 else None
        self._nowhere = over.tables.entries[:, over.tables.padding_slot, :1] * over.tables.page_tokens  # [G, 1]
        self._inputs = self._write(())
        self._upload.send()
        self._step, self._in_turn = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        self._together = torch.cuda.CUDAGraph() if width > 1 else None

    def warm_up(self) -> None:
        """Run all that will be captured: kernels are compiled and libraries allocate, which a capture does not allow."""
        for _ in range(_WARM_UPS):
            runs, hidden = self._compute()
            for together in (False, True)[: self.width]:
                self._finish(runs, hidden, together=together)

    def capture(self) -> None:
        """After this the step can be replayed."""
        memory = self._over.memory
        with torch.cuda.graph(self._step, pool=memory):
            self._computed = self._compute()
        with torch.cuda.graph(self._in_turn, pool=memory):
            self._drawn_in_turn = self._finish(*self._computed, together=False)
        if self._together is not None:
            with torch.cuda.graph(self._together, pool=memory):
                self._drawn_together = self._finish(*self._computed, together=True)

    def replay(self, rows: tuple[Row, ...]) -> DrawnRuns:
        """Run the step for `rows`, of which there are at most `size`, draw their tokens, and move their slots on."""
        self._write(rows)
        self._upload.send()
        self._step.replay()
        slots, sampler = tuple(row.slot for row in rows), self._over.sampler
        if not sampler.draws_on_device(slots) or sampler.reports(slots):
            runs, hidden = self._computed
            return self._over.eager.draw(_first(runs, slots), hidden, deferred=self.width > 1)
        if self._together is not None and sampler.independent(slots):
            self._together.replay()
            drawn = self._drawn_together
        else:
            self._in_turn.replay()
            drawn = self._drawn_in_turn
        sampler.note_draw(slots)
        return DrawnRuns(drawn.tokens[:, : len(rows)], drawn.emitted[: len(rows)])

    def _write(self, rows: tuple[Row, ...]) -> DraftInputs:
        upload, spare = self._upload, self.size - len(rows)
        upload.begin()
        drafts = [(*row.drafts, *(0,) * (self.width - 1 - len(row.drafts))) for row in rows]
        indices, pages = self._tables.places((row.slot, update) for row in rows for update in row.page_updates)
        idle = self.most_updates - len(indices)
        return DraftInputs(
            slots=upload.add([row.slot for row in rows] + [self._tables.padding_slot] * spare),
            drafts=upload.add([token for row in drafts for token in row] + [0] * spare * (self.width - 1)),
            counts=upload.add([len(row.drafts) for row in rows] + [0] * spare),
            updated=upload.add(indices + [self._tables.padding_entry] * idle),
            pages=upload.add(pages + [self._tables.padding_page] * idle),
        )

    def _compute(self) -> tuple[Runs, Tensor]:
        """The rows' runs, and the hidden states [size * width, hidden] of their tokens."""
        batch, runs = self._batch()
        return runs, self._over.decoder(batch, self._over.pools)

    def _finish(self, runs: Runs, hidden: Tensor, *, together: bool) -> DrawnRuns:
        verifier = self._over.captured
        return (verifier.draw_together if together else verifier.draw_in_turn)(runs, hidden, deferred=self.width > 1)

    def _batch(self) -> tuple[Batch, Runs]:
        at, inputs, tables, kept = self._upload.tensor, self._inputs, self._tables, self._over.slots
        slots, counts = at(inputs.slots), at(inputs.counts)
        where, positions, lengths, first, written = row_positions(
            slots, counts, kept.positions, kept.ends, kept.frozen, self.width
        )
        newest, found, places = slot_lookup(
            tables.entries, at(inputs.updated), at(inputs.pages), kept.next_tokens, where, positions, tables.page_tokens
        )
        drafts = at(inputs.drafts).view(self.size, -1)
        batch = Batch(
            tokens=torch.cat([newest[:, None], drafts], 1).flatten(),
            positions=positions,
            row_offsets=self._row_offsets,
            slots=where,
            lengths=lengths,
            page_tables=found.unbind(),
            write_at=torch.where(written, places, self._nowhere).unbind(),
            host_row_tokens=(self.width,) * self.size,
            deferred=self._deferred,
        )
        return batch, Runs((), slots, where, first, drafts.T, counts, self._hidden_at)


class DraftGraphs:
    """The graphs of all sizes and both widths. pool_bytes, device_bytes: what they took of torch's memory, the device's."""

    def __init__(self, sizes: tuple[int, ...], drafts: int, over: DraftCaptured) -> None:
        self._sizes, self._drafts = sizes, drafts
        shapes = [(size, width) for width in (1 + drafts, 1) for size in reversed(sizes)]
        self._graphs = {shape: DraftGraph(*shape, over) for shape in shapes}
        for graph in self._graphs.values():
            graph.warm_up()
        free_bytes, reserved_bytes = memory_left()
        for graph in self._graphs.values():  # the largest first: the smaller ones fit into its memory
            graph.capture()
        free_after, reserved_after = memory_left()
        self.pool_bytes = reserved_after - reserved_bytes
        self.device_bytes = free_bytes - free_after

    def graph_for(self, rows: tuple[Row, ...], *, deferred: bool) -> DraftGraph | None:
        """The graph that runs these rows; None if one has known tokens or draws none, or there is no graph so large.

        deferred: whether one of them has drafts, or may have some that are pending.
        """
        size = bucket_of(len(rows), self._sizes)
        if size is None or any(row.tokens or not row.samples for row in rows):
            return None
        graph = self._graphs[size, 1 + self._drafts if deferred else 1]
        updates = sum(len(update.pages) for row in rows for update in row.page_updates)
        return graph if updates <= graph.most_updates else None


def updates_of(tables: PageTables, width: int) -> int:
    """Pages that a row of `width` tokens may need anew, in all groups."""
    return len(tables.entries) * -(-width // tables.page_tokens)


def _first(runs: Runs, names: tuple[int, ...]) -> Runs:
    """Those of a step's first rows, by name."""
    count = len(names)
    return replace(
        runs, slots=names, named=runs.named[:count], where=runs.where[:count], positions=runs.positions[:count],
        drafts=runs.drafts[:, :count], counts=runs.counts[:count], hidden_at=runs.hidden_at[:, :count],
    )
