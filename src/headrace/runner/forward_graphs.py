"""The decoder's part of steps with short prompts as CUDA graphs, for engines that pack and draw in ways of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from headrace.layers.batch import Batch, Pools
from headrace.models.decoder import Decoder
from headrace.plan.graph_rows import PromptShape, shape_of
from headrace.runner.graphs import MemoryCounts, borrowed, memory_counts
from headrace.runner.page_tables import PageTables
from headrace.runner.prompt_batch import prompts_of
from headrace.runner.upload import Upload
from headrace.types import Row

_WARM_UPS = 2
Passed = tuple[Tensor, tuple[Tensor, ...]]
"""Hidden states [T, hidden], and those behind the layers that are tapped."""


@dataclass(frozen=True, slots=True)
class Forward:
    """What these graphs read and write. taps: layers, see `Decoder.tapped`. memory: torch's handle of the pool of all."""

    decoder: Decoder
    pools: Pools
    tables: PageTables
    taps: tuple[int, ...]
    memory: Any


class Places:
    """Where steps of any shape have their batch, one after the other: of so many tokens and rows at most."""

    def __init__(self, tokens: int, rows: int, tables: PageTables) -> None:
        self._tables, device = tables, tables.entries.device
        self._nowhere = tables.entries[:, tables.padding_slot, :1] * tables.page_tokens  # [G, 1]
        self._tokens, self._positions = (torch.zeros(tokens, dtype=torch.int64, device=device) for _ in range(2))
        self._write_at = self._nowhere.repeat(1, tokens)  # [G, T]
        self._slots = torch.full((rows,), tables.padding_slot, device=device)
        self._lengths = torch.zeros(rows, dtype=torch.int32, device=device)
        self._upload = Upload(2 * rows + 2, device)

    def clear(self, shape: PromptShape) -> Tensor:
        """A step of nothing but padding. Returns where the shape's row offsets will be, [R + 1] int32."""
        offsets, lengths, _ = self._send(shape, (), ())
        self._fill(0, shape)
        self._slots.fill_(self._tables.padding_slot)
        self._lengths[: len(lengths)] = lengths
        return offsets

    def take(self, batch: Batch, shape: PromptShape) -> None:
        """The batch of a step, whose rows of one token come first, as one of the shape. Tokens that are left are padding."""
        counts, count = batch.host_row_tokens, len(batch.tokens)
        singles = sum(tokens == 1 for tokens in counts)
        places = [*range(singles), *range(shape.rows, shape.rows + len(counts) - singles)]
        _, lengths, at = self._send(shape, counts, places)
        self._tokens[:count], self._positions[:count] = batch.tokens, batch.positions
        for written, given in zip(self._write_at, batch.write_at, strict=True):
            written[:count] = given
        self._fill(count, shape)
        self._slots.fill_(self._tables.padding_slot).index_copy_(0, at, batch.slots)
        self._lengths[: len(lengths)] = lengths
        self._lengths.index_copy_(0, at, batch.lengths)

    def batch(self, shape: PromptShape, offsets: Tensor) -> Batch:
        """What a graph of the shape reads. Operations on the device alone."""
        slots = self._slots[: len(offsets) - 1]
        return Batch(
            tokens=self._tokens[: shape.tokens],
            positions=self._positions[: shape.tokens],
            row_offsets=offsets,
            slots=slots,
            lengths=self._lengths[: len(slots)],
            page_tables=self._tables.entries[:, slots].unbind(),
            write_at=self._write_at[:, : shape.tokens].contiguous().unbind(),
            host_row_tokens=(1,) * shape.rows + (shape.tokens,) * (shape.prompts + 1),
            longer=shape.prompts + 1,
        )

    def _fill(self, count: int, shape: PromptShape) -> None:
        """Padding behind `count` tokens."""
        rest = slice(count, shape.tokens)
        self._tokens[rest], self._positions[rest], self._write_at[:, rest] = 0, 0, self._nowhere

    def _send(self, shape: PromptShape, counts: Sequence[int], places: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Offsets of the shape's rows, and lengths, of the padding alone, int32 at the same addresses each time; and places of
        the rows that there are. counts: their tokens.
        """
        rows = shape.rows + shape.prompts + 1
        widths, lengths = [0] * rows, [0] * rows
        for place, tokens in zip(places, counts, strict=True):
            widths[place] = tokens
        left = max((shape.rows, *(place + 1 for place in places)))
        widths[left] = lengths[left] = shape.tokens - sum(counts)
        upload = self._upload
        upload.begin()
        spans = (
            upload.add([0, *accumulate(widths)], torch.int32), upload.add(lengths, torch.int32), upload.add(places)
        )
        upload.send()
        offsets, known, at = (upload.tensor(span) for span in spans)
        return offsets, known, at


class ForwardGraph:
    """A pass of one shape."""

    def __init__(self, shape: PromptShape, places: Places, over: Forward) -> None:
        self._shape, self._places, self._over = shape, places, over
        self._offsets = places.clear(shape)
        self._graph = torch.cuda.CUDAGraph()
        self._passed: Passed = (torch.empty(0), ())  # there once it is captured

    def warm_up(self, outline: Decoder) -> None:
        """With few layers, what will be captured: a capture allows no kernel to be loaded."""
        self._places.clear(self._shape)
        for _ in range(_WARM_UPS):
            self._compute(outline)

    def capture(self) -> None:
        with torch.cuda.graph(self._graph, pool=self._over.memory):
            hidden, taps = self._compute(self._over.decoder)
        self._passed = borrowed(hidden), tuple(borrowed(tap) for tap in taps)

    def run(self, batch: Batch) -> Passed:
        """Of a batch that fits the shape, whose rows of one token come first. Valid until another graph runs."""
        self._places.take(batch, self._shape)
        self._graph.replay()
        (hidden, taps), count = self._passed, len(batch.tokens)
        return hidden[:count], tuple(tap[:count] for tap in taps)

    def _compute(self, decoder: Decoder) -> Passed:
        over = self._over
        return decoder.tapped(self._places.batch(self._shape, self._offsets), over.pools, over.taps)


class ForwardGraphs:
    """The graphs of all `shapes`. taken: the memory that they took."""

    def __init__(self, shapes: tuple[PromptShape, ...], over: Forward) -> None:
        self.shapes, outline = shapes, over.decoder.outline()
        tokens = max((shape.tokens for shape in shapes), default=0)
        places = Places(tokens, max((shape.rows + shape.prompts + 1 for shape in shapes), default=0), over.tables)
        self._graphs = {shape: ForwardGraph(shape, places, over) for shape in reversed(shapes)}
        for graph in self._graphs.values():
            graph.warm_up(outline)
        before = memory_counts()
        for graph in self._graphs.values():  # the largest first: the smaller ones fit into its memory
            graph.capture()
        self.taken: MemoryCounts = memory_counts().beyond(before)

    def graph_for(self, rows: Sequence[Row]) -> ForwardGraph | None:
        """The graph that runs these rows; None if one has drafts, or there is no graph so large."""
        if any(row.draft_count for row in rows):
            return None
        tokens = sum(len(row.tokens) or 1 for row in rows)
        shape = shape_of(tokens, len(rows), prompts_of(rows), self.shapes)
        return None if shape is None else self._graphs[shape]
