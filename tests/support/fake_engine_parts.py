"""An engine without a model: the real scheduler over a runner that counts. Its builders run in the engine process.

The token at position p of a sequence is (seed + p) % VOCAB, so a test can say what must come.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.config import EngineConfig
from headrace.engine.core import EngineCore
from headrace.errors import CheckpointError
from headrace.scheduler.scheduler import Scheduler
from headrace.types import EngineInfo, Request, RowResult, SamplingParams, StepPlan, StepResult

VOCAB = 1000
CONTEXT = 4096
PAGE_TOKENS = 16

Progress = Callable[[int, int], None]


def make_request(id: str, prompt: tuple[int, ...] = (1, 2, 3), *, max_tokens: int = 8, seed: int = 0) -> Request:
    return Request(id, prompt, SamplingParams(max_tokens=max_tokens), seed, max_tokens)


def expected_tokens(request: Request) -> tuple[int, ...]:
    first = len(request.prompt)
    return tuple((request.seed + p) % VOCAB for p in range(first, first + request.max_tokens))


@dataclass
class DoneStep:
    _result: StepResult

    def result(self) -> StepResult:
        return self._result


class CountingRunner:
    """step_s: how long a step takes. fail_at: the number of the step that raises."""

    def __init__(self, *, step_s: float = 0.0, fail_at: int | None = None) -> None:
        self.step_s = step_s
        self.fail_at = fail_at
        self.closed = False
        self._seeds: dict[int, int] = {}

    def launch(self, plan: StepPlan) -> DoneStep:
        for admission in plan.admissions:
            self._seeds[admission.slot] = admission.request.seed
        if plan.step == self.fail_at:
            raise RuntimeError("the device fell over")
        time.sleep(self.step_s)
        rows = []
        for row in plan.rows:
            token = (self._seeds[row.slot] + row.start + (len(row.tokens) or 1)) % VOCAB
            rows.append(RowResult(row.sequence, (token,) if row.samples else ()))
        return DoneStep(StepResult(plan.step, tuple(rows)))

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeBuilt:
    core: EngineCore
    info: EngineInfo


def make_engine(config: EngineConfig, runner: CountingRunner, pages: int | None = None, *, depth: int = 1) -> FakeBuilt:
    pages = pages or config.max_seqs * CONTEXT // PAGE_TOKENS
    layout = CacheLayout((CacheGroup(0, None, (0,), 4),), PAGE_TOKENS, (pages,), config.max_seqs)
    chunk = config.chunk_tokens or 1024
    info = EngineInfo("fake", "cpu", "float32", CONTEXT, config.max_seqs, chunk, PAGE_TOKENS, pages, VOCAB)
    return FakeBuilt(EngineCore(Scheduler(layout, chunk_tokens=chunk), runner, depth=depth), info)


# Builders: what `--builder` may name


def quick(model: Path, config: EngineConfig, progress: Progress) -> FakeBuilt:
    progress(1, 2)
    progress(2, 2)
    return make_engine(config, CountingRunner())


def steady(model: Path, config: EngineConfig, progress: Progress) -> FakeBuilt:
    """20 ms a step."""
    return make_engine(config, CountingRunner(step_s=0.02))


def endless_step(model: Path, config: EngineConfig, progress: Progress) -> FakeBuilt:
    return make_engine(config, CountingRunner(step_s=3600.0))


def endless_build(model: Path, config: EngineConfig, progress: Progress) -> FakeBuilt:
    progress(0, 1)
    time.sleep(3600.0)
    raise AssertionError


def fails_at_step_3(model: Path, config: EngineConfig, progress: Progress) -> FakeBuilt:
    return make_engine(config, CountingRunner(fail_at=3))


class SpecialCheckpointError(CheckpointError):
    """Of a class that the front does not know."""


def no_checkpoint(model: Path, config: EngineConfig, progress: Progress) -> FakeBuilt:
    raise SpecialCheckpointError(f"{model} is not a checkpoint")



def no_sense(model: Path, config: EngineConfig, progress: Progress) -> FakeBuilt:
    raise ZeroDivisionError("a bug")


def babbles(model: Path, config: EngineConfig, progress: Progress) -> FakeBuilt:
    """Writes bytes that are no frame to the front, then waits."""
    os.write(int(sys.argv[sys.argv.index("--fd") + 1]), b"\xff" * 64)
    time.sleep(3600.0)
    raise AssertionError
