"""What captured steps take, by rows and tokens, and what a drafter takes before them: measured at start, in empty slots."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import torch

from headrace.cache.layout import CacheLayout
from headrace.speculate.costs import StepCosts
from headrace.types import Row, SamplingParams

if TYPE_CHECKING:
    from headrace.runner.draft_graphs import DraftGraph
    from headrace.runner.drafting import Drafting
    from headrace.runner.page_tables import PageTables

Timer = Callable[[Callable[[], object], int], float]
_CONTEXT, _LONG_CONTEXT = 1024, 16_384
"""Tokens before the rows whose steps are timed; and before those that show what a longer context costs."""
_LONG_ROWS = 8
"""Of one row, 15,000 tokens are a twentieth of a large model's step, and hard to tell from its clocks."""
_FEW_TOKENS, _MANY_TOKENS = 16, 64
_ROUNDS, _MANY_TIMES, _TIMES = 3, 4, 2
"""Steps of a number of rows are timed in turn, so often, since clocks change; each is repeated, those of many tokens once."""
_SLOWER = 1.5
"""Times as long as the host to launch a run, the device surely did not wait for it."""
_HELD_TIMES = 2
"""Behind a first run, as many as `upload` has buffers for: a fourth waits for the first."""
_FASTEST_HZ = 3e9
"""Of a device's clock: a slower one is held back for longer."""
_SAMPLING = SamplingParams(temperature=1.0, top_k=20, top_p=0.95)


def on_device(run: Callable[[], object], times: int) -> float:
    """Seconds that the device takes for one of several runs in a row, the first of all left out. Where it might have waited for
    the host to launch them, it is held back until they are.
    """
    device_s, host_s = _timed(run, times)
    if device_s > _SLOWER * host_s:
        return device_s
    times = min(times, _HELD_TIMES)
    return _timed(run, times, _SLOWER * host_s * (1 + times))[0]


def _timed(run: Callable[[], object], times: int, hold_s: float = 0.0) -> tuple[float, float]:
    """Seconds of a run behind a first one, on the device and to launch it. hold_s: how long the device is held back."""
    if hold_s:
        torch.cuda._sleep(round(hold_s * _FASTEST_HZ))  # type: ignore[no-untyped-call]
    run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    began_s = time.perf_counter()
    for _ in range(times):
        run()
    host_s = time.perf_counter() - began_s
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / times, host_s / times


@dataclass(frozen=True, slots=True)
class StepTimes:
    """To be used before the first request: slots and pages are written to, and no sequence may be there."""

    drafting: Drafting
    layout: CacheLayout
    context: int
    timer: Timer = on_device

    @torch.inference_mode()
    def measure(self) -> StepCosts | None:
        """None where no step is captured; otherwise steps run as what they are found to be fastest as. Takes a second or two
        for 64 rows of a large model.
        """
        graphs = self.drafting.graphs
        if graphs is None:
            return None
        near = min(_CONTEXT, self.context // 2)
        steps: dict[int, dict[int, float]] = {}
        drafter: dict[int, tuple[float, ...]] = {}
        with self._occupied():
            for size in sorted({graph.size for graph in graphs.all}, reverse=True):
                steps[size], drafter[size] = self._of_rows(size, near)
            far = min(_LONG_CONTEXT, self.context - 2 * (1 + self.layout.drafts) * (_ROUNDS * _MANY_TIMES + 1))
            slopes = self._slopes(near, far) if far >= 2 * near else (0.0, 0.0)
        costs = StepCosts(steps, drafter, near, *slopes)
        graphs.prefer(costs)
        return costs

    def _of_rows(self, size: int, context: int) -> tuple[dict[int, float], tuple[float, ...]]:
        """Of steps of so many rows: seconds by tokens; and of 1, 2, ... drafts a row, what the smallest step with drafts takes
        longer when they are made before it.
        """
        graphs, proposer = self.drafting.graphs, self.drafting.proposer
        assert graphs is not None and proposer.drafter is not None
        steps = [graph for graph in graphs.all if graph.size == size]
        least = min((graph for graph in steps if graph.tokens > size), key=lambda graph: graph.tokens)
        ways = [*((graph, 0) for graph in steps), *((least, depth) for depth in proposer.drafter.depths)]
        found: dict[tuple[int, int], list[float]] = {(graph.tokens, depth): [] for graph, depth in ways}
        for _ in range(_ROUNDS):
            for graph, depth in ways:
                if graph.tokens <= _MANY_TOKENS or not found[graph.tokens, depth]:
                    found[graph.tokens, depth].append(self._step_s(graph, context, _times(graph.tokens), depth))
        alone = found[least.tokens, 0]
        more = {
            depth: max(0.0, median(a - b for a, b in zip(found[least.tokens, depth], alone, strict=True)))
            for depth in proposer.drafter.depths
        }
        made = tuple(more[proposer.depth(count)] for count in range(1, proposer.drafter.most + 1))
        return {graph.tokens: median(found[graph.tokens, 0]) for graph in steps}, made

    def _step_s(self, graph: DraftGraph, context: int, times: int, depth: int = 0) -> float:
        """At `context` tokens; every row has as many drafts as make up the graph's tokens. depth: drafts that are made before,
        none if 0.
        """
        rows = _rows(graph.size, graph.tokens // graph.size - 1)
        asking, graphs = _rows(graph.size, depth), self.drafting.graphs
        assert graphs is not None
        self.drafting.slots.positions.fill_(context)

        def step() -> None:
            graphs.propose(asking)
            graph.replay(rows)

        return self.timer(step, times)

    def _slopes(self, near: int, far: int) -> tuple[float, float]:
        """Seconds for a token more before a row, and for each of its drafts besides."""
        assert self.drafting.graphs is not None
        graphs = [graph for graph in self.drafting.graphs.all if graph.size <= _LONG_ROWS]
        rows = max(graph.size for graph in graphs)
        of_tokens = {graph.tokens: graph for graph in graphs if graph.size == rows}
        plain, widest = min(of_tokens), max(of_tokens)
        more: dict[int, list[float]] = {plain: [], widest: []}
        for _ in range(_ROUNDS):
            for tokens, found in more.items():
                near_s, far_s = (self._step_s(of_tokens[tokens], context, _TIMES) for context in (near, far))
                found.append(max(0.0, far_s - near_s) / (far - near) / rows)
        alone, drafted = median(more[plain]), median(more[widest])
        return alone, max(0.0, drafted - alone) / (widest // rows - 1)

    @contextmanager
    def _occupied(self) -> Iterator[None]:
        """Slots that have pages, as many as there are, no end, and draws as users have them; afterwards as if nothing had been,
        but for the draws, which are each request's.
        """
        slots, tables = self.drafting.slots, self.drafting.tables
        _spread(tables, self.layout)
        self.drafting.sample_as(_SAMPLING)
        slots.ends.fill_(torch.iinfo(torch.int64).max // 2)
        try:
            yield
        finally:
            tables.entries[:, : self.layout.slots] = 0
            for tensor in (slots.positions, slots.ends, slots.frozen, slots.pending, slots.next_tokens):
                tensor.zero_()


def _times(tokens: int) -> int:
    return 1 if tokens > _MANY_TOKENS else _TIMES if tokens > _FEW_TOKENS else _MANY_TIMES


def _rows(count: int, drafts: int) -> tuple[Row, ...]:
    return tuple(Row(slot, slot, 0, asked=drafts) for slot in range(count))


def _spread(tables: PageTables, layout: CacheLayout) -> None:
    """Each slot's page list, from pages of its own while there are any."""
    for entries, pages in zip(tables.entries, layout.pages, strict=True):
        count = layout.slots * tables.width
        every = torch.arange(count, device=entries.device) % pages
        entries[: layout.slots] = every.view(layout.slots, tables.width)
