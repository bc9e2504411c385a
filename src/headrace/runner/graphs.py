"""Decode steps as CUDA graphs: one for each number of rows, captured at start and replayed with new numbers."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from headrace.kernels.dispatch import runs_triton_on
from headrace.kernels.slot_lookup import slot_lookup
from headrace.layers.batch import Batch, Pools
from headrace.models.decoder import Decoder
from headrace.plan.graph_rows import bucket_of
from headrace.plan.uploads import graph_words
from headrace.runner.page_tables import PageTables
from headrace.runner.sampler import Drawn, Sampler
from headrace.runner.upload import Span, Upload
from headrace.types import Row

_WARM_UPS = 2
Made = TypeVar("Made", bound=Any)


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
    """What graphs read and write. draws: whether the draw can be captured. One memory pool serves all graphs. outline: of the
    decoder, for what is only to be warm.
    """

    decoder: Decoder
    outline: Decoder
    pools: Pools
    tables: PageTables
    sampler: Sampler
    draws: bool
    memory: Any  # torch's handle of the pool

    @classmethod
    def over(cls, decoder: Decoder, pools: Pools, tables: PageTables, sampler: Sampler) -> Captured:
        draws = sampler.dtype == torch.float32 and runs_triton_on(sampler.device)
        return cls(decoder, decoder.outline(), pools, tables, sampler, draws, torch.cuda.graph_pool_handle())


class Compute(Protocol):
    """Logits [R, vocab] in the model's type; with `outline` from few layers."""

    def __call__(self, *, outline: bool = False) -> Tensor: ...


class StepGraph:
    """A step that makes logits of R rows, and the draw from them for the slots `where` and the positions `sampled`, [R] int64.

    The draw is a graph of its own, which is left out for rows that the host must help to draw, or where no row draws.
    """

    def __init__(self, compute: Compute, where: Tensor, sampled: Tensor, over: Captured) -> None:
        self._compute, self._where, self._sampled, self._over = compute, where, sampled, over
        self.logits, self._tokens = torch.empty(0), torch.empty(0)  # there once it is captured
        self.step, self._drawing = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph() if over.draws else None

    def warm_up(self) -> None:
        """Run all that will be captured: kernels are compiled and libraries allocate, which a capture does not allow."""
        for _ in range(_WARM_UPS):
            logits = self._compute(outline=True)
            if self._drawing is not None:
                self._draw(logits)

    def capture(self) -> None:
        """After this the step can be replayed."""
        with torch.cuda.graph(self.step, pool=self._over.memory):
            logits = self._compute()
        if self._drawing is not None:
            with torch.cuda.graph(self._drawing, pool=self._over.memory):
                self._tokens = self._draw(logits)
        self.logits = borrowed(logits)

    def replay(self, slots: list[int]) -> Drawn | None:
        """Run the step with the numbers that were sent, and draw the first rows' tokens, which are of `slots`."""
        self.step.replay()
        count, sampler = len(slots), self._over.sampler
        if not slots:
            return None
        sampler.await_masks()
        if self._drawing is None or not sampler.draws_on_device(slots):
            logits = self.logits[:count].to(sampler.dtype)
            return sampler.draw_at(logits, slots, self._where[:count], self._sampled[:count])
        self._drawing.replay()
        return sampler.drawn(self.logits[:count], self._tokens[:count], slots)

    def _draw(self, logits: Tensor) -> Tensor:
        return self._over.sampler.draw_on_device(logits, self._where, self._sampled)


class DecodeGraph:
    """One step of `size` rows of one token, the newest of their slots: from the page updates to the logits, and the draw.

    Rows that a step lacks are padding: they compute one token in the padding slot and page, and nobody reads their logits.
    """

    def __init__(self, size: int, over: Captured) -> None:
        self.size = size
        self._over, self._tables = over, over.tables
        self._updates = size * len(over.tables.entries)
        device = over.sampler.device
        self._upload = Upload(graph_words(size, len(over.tables.entries)), device)
        self._row_offsets = torch.arange(size + 1, dtype=torch.int32, device=device)
        self._inputs = self._write(())
        self._upload.send()
        where, sampled = (self._upload.tensor(span) for span in (self._inputs.slots, self._inputs.sampled))
        self.graph = StepGraph(self._compute, where, sampled, over)

    def replay(self, rows: tuple[Row, ...]) -> Drawn | None:
        """Run the step for `rows`, of which there are at most `size`, and draw their tokens."""
        self._write(rows)
        self._upload.send()
        return self.graph.replay([row.slot for row in rows])

    def _compute(self, *, outline: bool = False) -> Tensor:
        decoder = self._over.outline if outline else self._over.decoder
        return decoder.scores(decoder(self._batch(), self._over.pools))

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
    """The graphs of all sizes."""

    def __init__(self, sizes: tuple[int, ...], over: Captured) -> None:
        self._sizes = sizes
        self._updates_per_row = len(over.tables.entries)
        self._graphs = {size: DecodeGraph(size, over) for size in reversed(sizes)}

    @property
    def steps(self) -> list[StepGraph]:
        """The largest first: the others fit into its memory."""
        return [graph.graph for graph in self._graphs.values()]

    def graph_for(self, rows: tuple[Row, ...]) -> DecodeGraph | None:
        """The graph that runs these rows; None if one has known tokens or draws none, or there is no graph so large."""
        plain = all(not row.tokens and row.samples and not row.drafts for row in rows)
        updates = sum(len(update.pages) for row in rows for update in row.page_updates)
        size = bucket_of(len(rows), self._sizes) if plain and updates <= len(rows) * self._updates_per_row else None
        return None if size is None else self._graphs[size]


def capture(graphs: Sequence[StepGraph]) -> MemoryCounts:
    """Capture graphs that share their memory, the largest first; returns what they took."""
    for graph in graphs:
        graph.warm_up()
    before = memory_counts()
    for graph in graphs:
        graph.capture()
    return memory_counts().beyond(before)


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


def all_borrowed(made: Made) -> Made:
    """A dataclass with its tensors `borrowed`."""
    values = {each.name: getattr(made, each.name) for each in fields(made)}
    return replace(made, **{name: borrowed(x) for name, x in values.items() if isinstance(x, Tensor)})


@dataclass(frozen=True, slots=True)
class MemoryCounts:
    """Bytes: used of the device by anybody, had by PyTorch, and allocated of those. What cuBLAS keeps for the stream that
    captures is allocated in the graphs' memory.
    """

    device: int
    pool: int
    tensors: int

    def and_also(self, more: MemoryCounts) -> MemoryCounts:
        return MemoryCounts(self.device + more.device, self.pool + more.pool, self.tensors + more.tensors)

    def beyond(self, before: MemoryCounts) -> MemoryCounts:
        return MemoryCounts(self.device - before.device, self.pool - before.pool, self.tensors - before.tensors)


def memory_counts() -> MemoryCounts:
    """With nothing in PyTorch's cache, and nothing that waits to be collected."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return MemoryCounts(total_bytes - free_bytes, torch.cuda.memory_reserved(), torch.cuda.memory_allocated())
