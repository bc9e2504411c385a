"""What the host takes for a step beside the runner, in microseconds of its CPU: `python benchmarks/host_step.py`.

Plans, commits and choices of drafts over a runner that has its results at once, for users of the lab model with its multi-token
head: without drafts, with four for every row, and as the controller chooses. A coin accepts as many as the model does, and the
controller's clock goes on by what the device takes for such a step on an H200, or the host, if that is more.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass

import numpy as np

from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.engine.core import EngineCore
from headrace.scheduler.scheduler import Scheduler
from headrace.speculate.costs import StepCosts
from headrace.speculate.pace import FixedPace, MeasuredPace, Pace
from headrace.types import Request, Row, RowResult, SamplingParams, StepPlan, StepResult

USERS = (1, 8, 32, 64)
DRAFTS, ACCEPTED = 4, (0.75, 0.73, 0.80, 0.70)
STEPS_MS = {
    1: {1: 0.248, 2: 0.248, 3: 0.247, 5: 0.25}, 8: {8: 0.266, 16: 0.268, 24: 0.284, 40: 0.304},
    32: {32: 0.324, 64: 0.338, 96: 0.341, 160: 0.372}, 64: {64: 0.345, 128: 0.366, 192: 0.391, 320: 0.425},
}
DRAFTING_MS = {
    1: (0.099, 0.167, 0.242, 0.316), 8: (0.113, 0.189, 0.282, 0.367), 32: (0.109, 0.194, 0.287, 0.374),
    64: (0.128, 0.227, 0.301, 0.418),
}
COSTS = StepCosts(
    {rows: {tokens: ms / 1e3 for tokens, ms in of.items()} for rows, of in STEPS_MS.items()},
    {rows: tuple(ms / 1e3 for ms in of) for rows, of in DRAFTING_MS.items()},
)
WARM_UP, STEPS, RUNNER_S = 200, 1500, 2e-4


@dataclass(frozen=True, slots=True)
class Done:
    """A step that was over at once."""

    came: StepResult

    def result(self) -> StepResult:
        return self.came


class Coin:
    """A runner whose steps are over at once. spent_s: of the host's CPU in it; waited_s: what the next step is told to have."""

    def __init__(self) -> None:
        self._random, self.spent_s, self.waited_s = random.Random(0), 0.0, 0.0

    def launch(self, plan: StepPlan) -> Done:
        began_s = time.thread_time()
        rows = tuple(RowResult(row.sequence, (7,) * (1 + self._accepted(row)) if row.samples else ()) for row in plan.rows)
        self.spent_s += time.thread_time() - began_s
        return Done(StepResult(plan.step, rows, self.waited_s))

    def _accepted(self, row: Row) -> int:
        return next((n for n in range(row.asked) if self._random.random() >= ACCEPTED[n]), row.asked)

    def close(self) -> None:
        """Nothing is held."""


class Clock:
    """Time as it passes for the controller: the host's CPU within a step, and what a step takes in all behind it."""

    def __init__(self) -> None:
        self._passed_s, self._began_s = 0.0, time.thread_time()

    def __call__(self) -> float:
        return self._passed_s + time.thread_time() - self._began_s

    def step_over(self, seconds: float) -> None:
        self._passed_s, self._began_s = self._passed_s + seconds, time.thread_time()


def microseconds(users: int, pace: Pace | None, clock: Clock) -> list[float]:
    """Of each step's plan and commit."""
    layout = CacheLayout((CacheGroup(0, None, (0,), 1),), 16, (40_000,), 64, padding=True, drafts=pace.most if pace else 0)
    coin = Coin()
    core = EngineCore(Scheduler(layout, chunk_tokens=2048, pace=pace), coin, depth=2)
    for user in range(users):
        core.add(Request(f"user {user}", tuple(range(100)), SamplingParams(), user, 9000))
    found = []
    for _ in range(WARM_UP + STEPS):
        spent_s, began_s = coin.spent_s, time.thread_time()
        core.step()
        host_s = time.thread_time() - began_s - (coin.spent_s - spent_s)
        drafts = min(pace.chosen, DRAFTS * users) if pace else 0
        device_s = COSTS.stairs(users)[drafts] + COSTS.drafting(users, DRAFTS)[-(-drafts // users)]
        clock.step_over(max(host_s + RUNNER_S, device_s))
        coin.waited_s = max(0.0, device_s - host_s - RUNNER_S)
        found.append(host_s * 1e6)
    return found[WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, nargs="*", default=USERS)
    args = parser.parse_args()
    print("users  drafts      mean us a step  median")
    for users in args.users:
        clock = Clock()
        controller = MeasuredPace(64, DRAFTS, COSTS, clock, quiet=True)
        for name, pace in (("none", None), ("four", FixedPace(DRAFTS, DRAFTS)), ("controller", controller)):
            took = microseconds(users, pace, clock)
            print(f"{users:5}  {name:10} {np.mean(took):15.0f} {np.median(took):7.0f}", flush=True)


if __name__ == "__main__":
    main()
