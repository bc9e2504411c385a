"""The controller of drafts in a simulator, beside no drafts and every fixed number of them: `python benchmarks/speculation.py`.

Every user decodes all the time, and the target accepts a draft with a chance that is the user's own. A step takes what the
table in speculation_costs.json says, and one without drafts behind one with them as long as one with a few. A step is chosen
while the one before it runs, as in the overlapped loop. The controller sees only what a coin accepted, a clock, and how long
the host waited; it is scored by the tokens that its choices yield on average, so that its score has no noise of the coin's
last falls. What its first steps cost is shown beside.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.speculate.costs import StepCosts
from headrace.speculate.pace import MeasuredPace

COSTS = Path(__file__).with_name("speculation_costs.json")
USERS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 40, 48, 64)
ACCEPTANCE = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
DRAFTS = 7
DRAFTERS = ("lookup", "mtp", "dflash")
LEARNING, STEPS = 200, 600
KEYS = ("bf16", "int8")
HOST_S = 0.001
"""What the host takes for a step, beside the device."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def h200_costs(drafter: str = "mtp", keys: str = "bf16") -> StepCosts:
    """The measured table with one of its DRAFTERS, and what long contexts cost with keys and values of one of KEYS."""
    table = json.loads(COSTS.read_text())
    steps = {int(rows): {int(tokens): ms / 1e3 for tokens, ms in of.items()} for rows, of in table["steps"].items()}
    slopes = [ns / 1e9 for ns in table["contexts"][keys]]
    return StepCosts(steps, _drafting(table["drafters"][drafter], sorted(steps)), table["context"], *slopes)


def _drafting(measured: dict[str, Any], sizes: list[int]) -> dict[int, tuple[float, ...]]:
    """By rows, seconds of 1, 2, ... drafts a row: the same for any number, or interpolated; between rows interpolated too."""
    counts, rows = range(1, DRAFTS + 1), [int(each) for each in measured]
    by_rows = [
        np.interp(counts, [int(count) for count in ms], list(ms.values())) if isinstance(ms, dict) else np.full(DRAFTS, ms)
        for ms in measured.values()
    ]
    return {
        size: tuple(float(np.interp(size, rows, [each[k] for each in by_rows])) / 1e3 for k in range(DRAFTS)) for size in sizes
    }


def expected_tokens(chances: Floats, drafts: Ints) -> float:
    """Tokens that rows yield on average: one, and each draft that is accepted with all before it."""
    depths = np.arange(1, DRAFTS + 1)
    return len(chances) + float((chances[:, None] ** depths)[depths <= drafts[:, None]].sum())


def fixed_rate(chances: Floats, drafts: int, costs: StepCosts, context: int = 0, host_s: float = 0.0) -> float:
    """Tokens a second with so many drafts in every row, of `context` tokens."""
    counts = np.full(len(chances), drafts)
    return expected_tokens(chances, counts) / max(host_s, costs.seconds(counts, np.full(len(chances), context), DRAFTS))


@dataclass(frozen=True)
class Outcome:
    """Tokens a second of the controller while it learns and after, without drafts, and with the best fixed number of them.

    rates, drafts: of each step, tokens a second and all rows' drafts. decide_s: what the choice of a step's drafts took on
    average; most stay as they were.
    """

    learning: float
    learnt: float
    off: float
    fixed: float
    best_fixed: int
    rates: tuple[float, ...]
    drafts: tuple[int, ...]
    decide_s: float

    @property
    def share(self) -> float:
        """Of the better of off and the best fixed number."""
        return self.learnt / max(self.off, self.fixed)


def simulate(
    chances: Sequence[float], costs: StepCosts, *, steps: int = STEPS, learning: int = LEARNING, seed: int = 0,
    changes: Sequence[float] | None = None, changes_at: int = 0, context: int = 0, host_s: float = HOST_S, slower: float = 1.0,
) -> Outcome:
    """A user for each of chances, of `context` tokens; from step changes_at on they are `changes`. slower: steps take so many
    times what the controller is told that they do.
    """
    rng, now = np.random.default_rng(seed), np.array(chances)
    rows, slots, contexts, passed_s = len(now), range(len(now)), np.full(len(now), context), 0.0
    pace = MeasuredPace(rows, DRAFTS, costs, lambda: passed_s, quiet=True)
    decide, tokens, seconds, counts, flight = list[float](), list[float](), list[float](), list[int](), deque[_Step]()
    for step in range(steps):
        if changes is not None and step == changes_at:
            now = np.array(changes)
        began = time.perf_counter()
        drafts = np.array(pace.choose(slots, [DRAFTS] * rows, contexts.tolist()))
        pace.planned(int(drafts.sum()), usual=True)
        decide.append(time.perf_counter() - began)
        hits = rng.random((rows, DRAFTS)) < now[:, None]
        flight.append(_Step(drafts, np.minimum(drafts, np.cumprod(hits, axis=1).sum(1))))
        device_s = costs.seconds(drafts, contexts, DRAFTS) + costs.behind(rows, int(drafts.sum()), counts[-1] if counts else 0)
        tokens.append(expected_tokens(now, drafts))
        seconds.append(max(host_s, slower * device_s))
        counts.append(int(drafts.sum()))
        if len(flight) == 2:
            passed_s += seconds[-2]
            over = flight.popleft()
            pace.observe(slots, over.drafts.tolist(), over.accepted.tolist(), seconds[-2] - host_s)
    fixed = [fixed_rate(now, k, costs, context, host_s / slower) / slower for k in range(DRAFTS + 1)]
    return Outcome(
        sum(tokens[:learning]) / sum(seconds[:learning]), sum(tokens[learning:]) / sum(seconds[learning:]),
        fixed[0], max(fixed[1:]), 1 + int(np.argmax(fixed[1:])),
        tuple(t / s for t, s in zip(tokens, seconds, strict=True)), tuple(counts), float(np.mean(decide)),
    )


@dataclass(frozen=True)
class _Step:
    """Under way. drafts, accepted: [R]."""

    drafts: Ints
    accepted: Ints


def mixed(users: int) -> list[float]:
    """Half of the users at 0.0, half at 0.95."""
    return [0.0, 0.95] * (users // 2)


def line(users: int, what: str, outcome: Outcome) -> str:
    best, learning = max(outcome.off, outcome.fixed), outcome.learning / max(outcome.off, outcome.fixed)
    fixed = f"{outcome.fixed:8.0f} (k={outcome.best_fixed})"
    drafts = sum(outcome.drafts[LEARNING:]) / users / (STEPS - LEARNING)
    controller = f"{outcome.learnt:12.0f} {outcome.learnt / best:6.3f} {learning:9.3f} {drafts:7.2f}"
    return f"{users:5} {what:>6} {outcome.off:8.0f} {fixed} {controller} {outcome.decide_s * 1e6:7.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drafter", choices=DRAFTERS, default="mtp")
    parser.add_argument("--users", type=int, nargs="*", default=USERS)
    parser.add_argument("--keys", choices=KEYS, default="bf16")
    parser.add_argument("--context", type=int, default=1024)
    args = parser.parse_args()
    costs = h200_costs(args.drafter, args.keys)
    print("users  accept    off/s   best fixed/s controller/s  share first 200 drafts a row us a choice")
    for users in args.users:
        for chance in ACCEPTANCE:
            outcome = simulate([chance] * users, costs, seed=args.seed, context=args.context)
            print(line(users, f"{chance:.2f}", outcome), flush=True)
        if users > 1:
            outcome = simulate(mixed(users), costs, seed=args.seed, context=args.context)
            print(line(users, "mixed", outcome), flush=True)


if __name__ == "__main__":
    main()
