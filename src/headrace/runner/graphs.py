"""Decode steps as CUDA graphs: one for each number of rows, captured at start and replayed with new numbers."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.kernels.dispatch import runs_triton_on
from headrace.kernels.slot_lookup import slot_lookup
from headrace.layers.batch import Batch, Pools
from headrace.models.decoder import Decoder
from headrace.plan.graph_rows import bucket_of
from headrace.runner.page_tables import PageTables
from headrace.runner.sampler import Drawn, Sampler
from headrace.runner.upload import Span, Upload
from headrace.types import Row

_WORDS_PER_ROW = 6
_WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """What changes from step to step, at fixed places in an upload; R rows, U = R times the number of cache groups."""

    slots: Span  # [R] int64
    positions: Span  # [R] int64, of the tokens that are computed
    sampled: Span  # [R] int64, of the tokens that are drawn
    lengths: Span  # [R] int32
    updated: Span  # [U] int64, indices of the page tables' entries
    pages: Span  # [U] int64, what they become


@dataclass(frozen=True, slots=True)
class Captured:
    """What graphs read and write. draws: whether the draw can be captured. One memory pool serves all graphs."""

    decoder: Decoder
    pools: Pools
    tables: PageTables
    sampler: Sampler
    draws: bool
    memory: Any  # torch's handle of the pool


class DecodeGraph:
    """One step of `size` rows of one token, the newest of their slots: from the page updates to the logits, and the draw.

    Rows that a step lacks are padding: they compute one token in the padding slot and page, and nobody reads their logits.
    The draw is a graph of its own, which is left out for rows that the host must help to draw.
    """

    def __init__(self, size: int, over: Captured) -> None:
        self.size = size
        self._over, self._tables = over, over.tables
        self._updates = size * len(over.tables.entries)
        device = over.sampler.device
        self._upload = Upload(_WORDS_PER_ROW * size + 2 * self._updates, device)
        self._row_offsets = torch.arange(size + 1, dtype=torch.int32, device=device)
        self._inputs = self._write(())
        self._upload.send()
        self._where, self._sampled = (self._upload.tensor(span) for span in (self._inputs.slots, self._inputs.sampled))
        self._logits, self._tokens = torch.empty(0), torch.empty(0)  # there once it is captured
        self._step, self._drawing = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph() if over.draws else None

    def warm_up(self) -> None:
        """Run all that will be captured: kernels are compiled and libraries allocate, which a capture does not allow."""
        for _ in range(_WARM_UPS):
            logits = self._compute()
            if self._drawing is not None:
                self._draw(logits)

    def capture(self) -> None:
        """After this the step can be replayed."""
        with torch.cuda.graph(self._step, pool=self._over.memory):
            logits = self._compute()
        if self._drawing is not None:
            with torch.cuda.graph(self._drawing, pool=self._over.memory):
                self._tokens = self._draw(logits)
        self._logits = borrowed(logits)

    def replay(self, rows: tuple[Row, ...]) -> Drawn:
        """Run the step for `rows`, of which there are at most `size`, and draw their tokens."""
        self._write(rows)
        self._upload.send()
        self._step.replay()
        count, slots, sampler = len(rows), [row.slot for row in rows], self._over.sampler
        if self._drawing is None or not sampler.draws_on_device(slots):
            logits = self._logits[:count].to(sampler.dtype)
            return sampler.draw_at(logits, slots, self._where[:count], self._sampled[:count])
        self._drawing.replay()
        return sampler.drawn(self._logits[:count], self._tokens[:count], slots)

    def _compute(self) -> Tensor:
        """Logits [size, vocab] in the model's type."""
        over = self._over
        return over.decoder.scores(over.decoder(self._batch(), over.pools))

    def _draw(self, logits: Tensor) -> Tensor:
        return self._over.sampler.draw_on_device(logits, self._where, self._sampled)

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

    def _batch(self) -> Batch:
        at, inputs, over = self._upload.tensor, self._inputs, self._over
        slots, positions = at(inputs.slots), at(inputs.positions)
        tokens, tables, places = slot_lookup(
            self._tables.entries, at(inputs.updated), at(inputs.pages), over.sampler.next_tokens, slots, positions,
            self._tables.page_tokens,
        )
        return Batch(
            tokens=tokens,
            positions=positions,
            row_offsets=self._row_offsets,
            slots=slots,
            lengths=at(inputs.lengths),
            page_tables=tables.unbind(),
            write_at=places.unbind(),
            host_row_tokens=(1,) * self.size,
        )


class DecodeGraphs:
    """The graphs of all sizes. taken: the memory that they took."""

    def __init__(
        self, sizes: tuple[int, ...], decoder: Decoder, pools: Pools, tables: PageTables, sampler: Sampler
    ) -> None:
        self._sizes = sizes
        self._updates_per_row = len(tables.entries)
        draws = sampler.dtype == torch.float32 and runs_triton_on(sampler.device)
        over = Captured(decoder, pools, tables, sampler, draws, torch.cuda.graph_pool_handle())
        self._graphs = {size: DecodeGraph(size, over) for size in reversed(sizes)}
        for graph in self._graphs.values():
            graph.warm_up()
        before = memory_counts()
        for graph in self._graphs.values():  # the largest first: the smaller ones fit into its memory
            graph.capture()
        self.taken = memory_counts().beyond(before)

    def graph_for(self, rows: tuple[Row, ...]) -> DecodeGraph | None:
        """The graph that runs these rows; None if one has known tokens or draws none, or there is no graph so large."""
        plain = all(not row.tokens and row.samples and not row.drafts for row in rows)
        updates = sum(len(update.pages) for row in rows for update in row.page_updates)
        size = bucket_of(len(rows), self._sizes) if plain and updates <= len(rows) * self._updates_per_row else None
        return None if size is None else self._graphs[size]


def borrowed(x: Tensor) -> Tensor:
    """x's memory as a tensor that does not keep it.

    For what a graph leaves behind: the graph keeps its pool's memory, in which other graphs put what they want as soon as no
    tensor has it. So it is there from the graph's replay to another's, and no graph takes memory for it from the others.
    """
    assert x.is_contiguous()
    number = np.dtype(f"i{x.itemsize}")
    interface = {"shape": tuple(x.shape), "strides": None, "typestr": number.str, "data": (x.data_ptr(), False), "version": 3}
    memory = type("Memory", (), {"__cuda_array_interface__": interface})()
    return torch.as_tensor(memory, device=x.device).view(x.dtype)


@dataclass(frozen=True, slots=True)
class MemoryCounts:
    """Bytes: used of the device by anybody, had by PyTorch, and allocated of those. What cuBLAS keeps for the stream that
    captures is allocated in the graphs' memory.
    """

    device: int
    pool: int
    tensors: int

    def beyond(self, before: MemoryCounts) -> MemoryCounts:
        return MemoryCounts(self.device - before.device, self.pool - before.pool, self.tensors - before.tensors)


def memory_counts() -> MemoryCounts:
    """With nothing in PyTorch's cache, and nothing that waits to be collected."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return MemoryCounts(total_bytes - free_bytes, torch.cuda.memory_reserved(), torch.cuda.memory_allocated())
