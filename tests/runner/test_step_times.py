"""Costs of steps that are measured at start: what is measured, and that nothing of it stays."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.runner.test_drafts import answers, build, compute_what_is_captured, make_requests, replays
from tests.support.tiny import make_tiny_checkpoint

from headrace.runner.step_times import StepTimes, on_device
from headrace.speculate.pace import MeasuredPace

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS: dict[str, object] = {"max_seqs": 5, "chunk_tokens": 64, "page_tokens": 4, "loop": "overlapped"}


class Clock:
    """Runs what it is to time, and gives each run's seconds: wide steps are fast, and long contexts slow."""

    def __init__(self, drafting: Any) -> None:
        self._drafting, self.context = drafting, 0

    def __call__(self, run: Callable[[], object], times: int) -> float:
        at = int(self._drafting.slots.positions[0])
        run()
        self.context = max(self.context, at)
        return times * (1.0 + at / 1000)


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "qwen3"])
def test_measured_steps_leave_nothing_behind(model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens behind a measurement are those of an engine without drafts, by steps that run as what was found fastest."""
    checkpoint = make_tiny_checkpoint(tmp_path / "model", model_type, seed=4)
    requests = make_requests(20, 100)
    expected = answers(build(checkpoint, None, **SETTINGS), requests)
    core = build(checkpoint, None, **SETTINGS, speculate="lookup", draft_tokens=7)
    runner: Any = core._runner
    compute_what_is_captured(monkeypatch, runner, 5)
    clock = Clock(runner._drafting)
    costs = StepTimes(runner._drafting, runner.layout, 200, clock).measure()
    assert costs is not None and costs.context == 100 and clock.context >= 100
    assert {size: sorted(steps) for size, steps in costs.steps.items()} == {
        size: [size * width for width in (1, 2, 4, 8)] for size in (1, 2, 4, 5)
    }
    assert all(len(seconds) == 7 for seconds in costs.drafter.values())
    slots = runner._drafting.slots
    assert not slots.positions.any() and not slots.frozen.any() and not slots.pending.any() and not slots.ends.any()
    assert not runner._tables.entries[:, : runner.layout.slots].any()
    scheduler: Any = core._scheduler
    scheduler._drafts._pace = MeasuredPace(5, 7, costs)
    used = replays(runner._drafting.graphs)
    found = answers(core, requests)
    assert {name: (a.tokens, a.end) for name, a in found.items()} == {name: (a.tokens, a.end) for name, a in expected.items()}
    assert used and torch.isfinite(torch.tensor(scheduler._drafts.gain))


def test_what_long_contexts_cost_is_of_several_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card's clocks change while it is measured, by more than what one row's context takes."""
    sizes = {1: (1, 2, 4, 8), 8: (8, 16, 32, 64), 16: (16, 128)}
    graphs = [SimpleNamespace(size=size, tokens=tokens) for size, of in sizes.items() for tokens in of]
    clock = count()

    def step_s(times: StepTimes, graph: Any, context: int, repeated: int) -> float:
        drafts = graph.tokens - graph.size
        return 5.0 + 2e-5 * graph.size * context + 1e-6 * drafts * context + (0.05 if next(clock) == 3 else 0.0)

    monkeypatch.setattr(StepTimes, "_step_s", step_s)
    drafting: Any = SimpleNamespace(graphs=SimpleNamespace(all=graphs))
    layout: Any = None
    assert StepTimes(drafting, layout, 20_000)._slopes(1024, 16_384) == pytest.approx((2e-5, 1e-6))
    graphs[:] = graphs[:4]
    assert StepTimes(drafting, layout, 20_000)._slopes(1024, 16_384) == pytest.approx((2e-5, 1e-6))


@pytest.mark.gpu
@pytest.mark.parametrize("launching_s", [0.0, 0.002])
def test_the_device_is_timed_and_not_its_host(launching_s: float) -> None:
    """A product that takes the device some 0.01 ms is not slower because it is launched slowly; one that takes it over a
    millisecond is timed as it is.
    """
    for size, most_s in ((512, 5e-4), (8192, 1.0)):
        x = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
        out = torch.empty_like(x)

        def run(x: torch.Tensor = x, out: torch.Tensor = out) -> None:
            time.sleep(launching_s)
            torch.mm(x, x, out=out)

        at_once, found = on_device(lambda x=x, out=out: torch.mm(x, x, out=out), 4), on_device(run, 4)  # type: ignore[misc]
        assert 0 < found < most_s
        if size == 8192:
            assert found == pytest.approx(at_once, rel=0.3)
