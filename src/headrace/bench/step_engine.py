"""An engine whose steps can be measured without the prompts that lead to them: its cache holds random numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import torch
from msgspec import structs

from headrace.bench.running import give_up
from headrace.config import EngineConfig
from headrace.engine.build import BuiltEngine, build_engine
from headrace.engine.core import EngineCore
from headrace.engine.core import PendingStep as Pending
from headrace.plan.checkpoint import Model
from headrace.runner.runner import Runner
from headrace.scheduler.scheduler import Scheduler
from headrace.types import Admission, PageUpdate, Request, Row, RowResult, SamplingParams, StepPlan, StepResult

SAMPLING = SamplingParams(temperature=1.0, top_k=20, top_p=0.95)
SPARE_TOKENS = 48
"""A sequence's, beside those of the steps that are timed: warm-ups, profiled steps, drafts that are drawn after all."""


class Steps(Protocol):
    """Steps of one shape, one after the other."""

    def step(self) -> None: ...

    def finish(self) -> None:
        """Leave the engine as it was found."""


@dataclass
class _Skipped:
    outcome: StepResult

    def result(self) -> StepResult:
        return self.outcome


class PromptSkipper:
    """A runner that does not compute prompts, but takes what the cache holds for what their steps leave behind."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def launch(self, plan: StepPlan) -> Pending:
        if not any(row.tokens for row in plan.rows):
            return self._runner.launch(plan)
        self._runner.assume(plan)
        return _Skipped(StepResult(plan.step, tuple(RowResult(row.sequence, (0,) * row.samples) for row in plan.rows)))

    def close(self) -> None:
        """The runner is its owner's to close."""


class FixedDrafts:
    """A drafter of `count` of at most `most` drafts in every step, which are not what the model would say."""

    def __init__(self, most: int) -> None:
        self.most = self.count = most

    def propose(self, request: Request, output: Sequence[int], unseen: int, most: int) -> tuple[int, ...]:
        return request.prompt[: min(most, self.count)]


class DecodeSteps:
    """The engine's loop, scheduler included: `rows` sequences decode from `context` tokens on, with drafts if it has any."""

    _names = count()

    def __init__(self, measured: MeasuredEngine, rows: int, context: int, steps: int) -> None:
        scheduler = Scheduler(measured.runner.layout, chunk_tokens=rows * context, drafter=measured.drafter)
        self._core = EngineCore(scheduler, PromptSkipper(measured.runner), depth=measured.depth)
        rng = torch.Generator().manual_seed(rows)
        for number in range(rows):
            prompt = tuple(torch.randint(0, measured.vocab_size, (context,), generator=rng).tolist())
            # Never done before the measurement is.
            self._core.add(Request(f"s{next(self._names)}", prompt, SAMPLING, number, steps + SPARE_TOKENS))
        self._core.step()

    def step(self) -> None:
        self._core.step()

    def finish(self) -> None:
        give_up(self._core)


class ChunkSteps:
    """`rows` rows of `tokens` known tokens each, at the same positions in every step."""

    def __init__(self, measured: MeasuredEngine, rows: int, tokens: int, context: int) -> None:
        self._runner, self._depth = measured.runner, measured.depth
        self._flight: deque[Pending] = deque()
        layout = measured.runner.layout
        pages = -(-context // layout.page_tokens)
        groups = range(len(layout.groups))
        requests = [Request(f"c{n}", (0,) * (context + 1), SAMPLING, n, 1) for n in range(rows)]
        admissions = tuple(Admission(n, n, request) for n, request in enumerate(requests))
        given = [tuple(PageUpdate(g, 0, tuple(range(n * pages, (n + 1) * pages))) for g in groups) for n in range(rows)]
        rng = torch.Generator().manual_seed(tokens)
        known = torch.randint(0, measured.vocab_size, (rows, tokens), generator=rng).tolist()
        self._rows = tuple(Row(n, n, context - tokens, tuple(known[n])) for n in range(rows))
        first = tuple(structs.replace(row, page_updates=updates) for row, updates in zip(self._rows, given, strict=True))
        self._plan = StepPlan(0, admissions, first)

    def step(self) -> None:
        self._flight.append(self._runner.launch(self._plan))
        self._plan = StepPlan(self._plan.step + 1, (), self._rows)
        if len(self._flight) == self._depth:
            self._flight.popleft().result()

    def finish(self) -> None:
        while self._flight:
            self._flight.popleft().result()


class MeasuredEngine:
    """One model with a cache of random numbers. depth: uncommitted steps, as the engine's loop has them. drafts: the most of
    a row.
    """

    def __init__(self, model: Model, config: EngineConfig, drafts: int = 0) -> None:
        self.drafter = FixedDrafts(drafts) if drafts else None
        self.built: BuiltEngine = build_engine(model, config, None, self.drafter)
        self.runner: Runner = self.built.runner
        self.depth = self.built.core.depth
        self.vocab_size = self.built.info.vocab_size
        self.runner.fill_cache()

    def steps(self, rows: int, tokens: int, context: int, steps: int, drafts: int = 0) -> Steps:
        """Steps whose rows are `context` tokens long, in the middle of `steps` where they grow. Drafts follow one token."""
        if self.drafter is not None:
            self.drafter.count = drafts
        if tokens == 1:
            return DecodeSteps(self, rows, max(1, context - steps // 2), steps)
        return ChunkSteps(self, rows, tokens, context)

    def close(self) -> None:
        self.built.core.close()
