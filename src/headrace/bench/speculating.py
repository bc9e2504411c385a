"""Decoding with drafts that a coin accepts: measured on an engine, and expected from what its steps take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headrace.bench.step_engine import SAMPLING, PromptSkipper
from headrace.config import EngineConfig
from headrace.engine.build import build_engine
from headrace.engine.core import EngineCore
from headrace.errors import ConfigError
from headrace.plan.checkpoint import Model
from headrace.scheduler.scheduler import Scheduler
from headrace.speculate.costs import StepCosts
from headrace.speculate.pace import FixedPace, MeasuredPace, Pace
from headrace.types import Request


@dataclass(frozen=True, slots=True)
class Measured:
    """Over so many steps: tokens a second, drafts of a row in a step, and what a step took."""

    tokens_per_s: float
    drafts: float
    step_ms: float


class SpeculatingEngine:
    """One engine whose drafts a coin accepts; its cache holds random numbers."""

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self.built = build_engine(model, config, None)
        self._runner = self.built.runner
        self._layout, self._context = self._runner.layout, self.built.info.context
        self._runner.fill_cache()  # what a card takes for a product depends on the numbers too
        costs = self._runner.step_costs(self._context)
        if costs is None:
            self.close()
            raise ConfigError("what drafts cost is measured on captured steps: this needs a GPU, and graphs")
        self.costs, self.most = costs, self._layout.drafts
        self._names = 0

    def measure(self, chances: Sequence[float], drafts: int | None, context: int, learning: int, steps: int) -> Measured:
        """`steps` steps of a row for each of `chances`, of `context` tokens at first, after `learning` others."""
        pace = self.pace(drafts)
        core = self._decoding(chances, pace, context)
        for _ in range(learning):
            core.step()
        made, before, began = 0, core.stats().generation_tokens_total, time.perf_counter()
        for _ in range(steps):
            core.step()
            made += pace.chosen
        took_s = time.perf_counter() - began
        tokens = core.stats().generation_tokens_total - before
        for request in core.open_requests:
            core.cancel(request)
        while core.has_work:
            core.step()
        return Measured(tokens / took_s, made / steps / len(chances), took_s / steps * 1e3)

    def pace(self, drafts: int | None) -> Pace:
        """None: what the engine itself would do."""
        return MeasuredPace(self._layout.slots, self.most, self.costs) if drafts is None else FixedPace(self.most, drafts)

    def close(self) -> None:
        self.built.core.close()

    def _decoding(self, chances: Sequence[float], pace: Pace, context: int) -> EngineCore:
        rows, slots = len(chances), self._layout.slots
        self._runner.accept([chances[slot % rows] for slot in range(slots)])
        scheduler = Scheduler(self._layout, chunk_tokens=rows * context, pace=pace)
        core = EngineCore(scheduler, PromptSkipper(self._runner), depth=self.built.core.depth)
        rng = torch.Generator().manual_seed(rows)
        for number in range(rows):
            prompt = tuple(torch.randint(0, self.built.info.vocab_size, (context,), generator=rng).tolist())
            self._names += 1
            core.add(Request(f"s{self._names}", prompt, SAMPLING, number, self._context - context))
        core.step()
        return core


def expected(
    chances: Sequence[float], drafts: int | None, costs: StepCosts, most: int, learning: int, steps: int
) -> float:
    """Tokens a second as the costs have it, by the controller over a coin of its own if drafts are None."""
    rows, coin = len(chances), np.random.default_rng(0)
    chance, depths = np.array(chances)[:, None], np.arange(1, most + 1)
    passed_s = tokens = seconds = 0.0
    pace: Pace = MeasuredPace(rows, most, costs, lambda: passed_s) if drafts is None else FixedPace(most, drafts)
    slots, limits, contexts, before = range(rows), [most] * rows, [costs.context] * rows, 0
    for step in range(learning + steps):
        counts = np.array(pace.choose(slots, limits, contexts))
        accepted = np.minimum(counts, np.cumprod(coin.random((rows, most)) < chance, axis=1).sum(1))
        pace.observe(slots, counts.tolist(), accepted.tolist())
        step_s = float(costs.stairs(rows)[counts.sum()] + costs.drafting(rows, most)[counts.max()])
        step_s += costs.behind(rows, int(counts.sum()), before)
        passed_s, before = passed_s + step_s, int(counts.sum())
        if step >= learning:
            tokens += rows + float((chance**depths)[depths <= counts[:, None]].sum())
            seconds += step_s
    return tokens / seconds
