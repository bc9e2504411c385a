"""What a step costs in Python, without the model: `python benchmarks/step_cost.py`.

64 sequences decode while others wait. Every step a request arrives as a frame and the oldest waiting one is cancelled, the
scheduler plans and commits, and the events leave as a frame. The stand-in for the runner is not counted. With the prefix cache
and without.
"""

from __future__ import annotations

import argparse
import time
from itertools import count

from headrace.cache.checkpoint_places import CheckpointPlaces
from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.cache.policy.flops_per_byte import FlopsPerByte
from headrace.cache.prefix.settings import PrefixSettings
from headrace.engine import frames
from headrace.engine.core import EngineCore
from headrace.scheduler.scheduler import Scheduler
from headrace.types import Request, RowResult, SamplingParams, StepPlan, StepResult

RUNNING = 64
PROMPT_TOKENS = 1000
PREFIXES = PrefixSettings(FlopsPerByte(5e10, 1e5, 65_536, 78_446_592), 256, CheckpointPlaces(1197, 256))


class InstantRunner:
    """Answers every plan with token 5, and keeps count of the seconds it takes to."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def launch(self, plan: StepPlan) -> InstantRunner:
        self._plan = plan
        return self

    def result(self) -> StepResult:
        began = time.perf_counter()
        rows = tuple(RowResult(row.sequence, (5,) if row.samples else ()) for row in self._plan.rows)
        self.spent_s += time.perf_counter() - began
        return StepResult(self._plan.step, rows)

    def close(self) -> None:
        """Nothing to release."""


def request(number: int) -> Request:
    prompt = tuple(range(number, number + PROMPT_TOKENS))
    return Request(f"request-{number}-0", prompt, SamplingParams(), number, 20_000, eos_ids=(2,))


def step_times_ms(waiting: int, steps: int, prefixes: PrefixSettings | None) -> list[float]:
    """Milliseconds of each step with RUNNING rows and `waiting` requests in the queue."""
    layout = CacheLayout((CacheGroup(0, None, (0,), 1),), 16, (RUNNING * 2000,), RUNNING, checkpoints=RUNNING)
    runner = InstantRunner()
    core = EngineCore(Scheduler(layout, chunk_tokens=RUNNING * PROMPT_TOKENS, prefixes=prefixes), runner)
    for number in range(RUNNING + waiting):
        core.add(request(number))
    core.step()  # admits the running ones
    commands = frames.command_reader()
    times = []
    for done, arriving in zip(range(steps), count(RUNNING + waiting)):
        arrival = frames.encode(frames.Submit(request(arriving)))
        spent_before, began = runner.spent_s, time.perf_counter()
        for command in commands.feed(arrival):
            core.add(command.request)
        core.cancel(f"request-{RUNNING + done}-0")
        frames.encode(frames.Turned(tuple(core.step()), core.stats() if done % 3 == 0 else None))
        times.append((time.perf_counter() - began - runner.spent_s + spent_before) * 1e3)
    assert core.stats().requests_running == RUNNING and core.stats().requests_waiting == waiting
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    print(f"{RUNNING} running rows; milliseconds of a step: receive, plan, commit, emit")
    for name, prefixes in (("without", None), ("with", PREFIXES)):
        for waiting in (0, 1000, 10_000):
            times = sorted(step_times_ms(waiting, options.steps, prefixes))
            median, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
            print(f"{name} the prefix cache, {waiting:6} waiting: median {median:.3f} ms, p99 {p99:.3f} ms")


if __name__ == "__main__":
    main()
