"""Decoding with drafts that a coin accepts, measured on an engine."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headrace.bench.running import give_up, measured_costs
from headrace.bench.step_engine import SAMPLING, PromptSkipper
from headrace.config import EngineConfig
from headrace.engine.build import build_engine
from headrace.engine.core import EngineCore
from headrace.errors import ConfigError
from headrace.plan.checkpoint import Model
from headrace.scheduler.scheduler import Scheduler
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
        try:
            self.costs = measured_costs(self._runner, self._context)
        except ConfigError:
            self.close()
            raise
        self.most = self._layout.drafts
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
        give_up(core)
        return Measured(tokens / took_s, made / steps / len(chances), took_s / steps * 1e3)

    def pace(self, drafts: int | None) -> Pace:
        """None: what the engine itself would do."""
        return MeasuredPace(self._layout.slots, self.most, self.costs) if drafts is None else FixedPace(self.most, drafts)

    def close(self) -> None:
        """Another engine may have the device's memory then."""
        self.built.core.close()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

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
