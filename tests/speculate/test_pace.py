"""The controller with its memory, as the scheduler asks it: what it learns, what it tells, and what it complains of once."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from headrace.speculate import pace as pace_module
from headrace.speculate.controller import Choice, choose
from headrace.speculate.costs import StepCosts
from headrace.speculate.pace import FixedPace, MeasuredPace

COSTS = StepCosts({2: {2: 1.0, 4: 1.2, 8: 1.5, 16: 2.0}}, {2: tuple(0.02 * k for k in range(1, 8))})


def run(pace: MeasuredPace, chances: list[float], steps: int) -> list[tuple[int, ...]]:
    rng, found = np.random.default_rng(3), []
    slots, rows = list(range(len(chances))), len(chances)
    for slot in slots:
        pace.begin(slot)
    for _ in range(steps):
        found.append(pace.choose(slots, [7] * rows, [0] * rows))
        fell = np.cumprod(rng.random((rows, 7)) < np.array(chances)[:, None], axis=1).sum(1)
        pace.planned(sum(found[-1]), usual=True)
        pace.observe(slots, found[-1], np.minimum(fell, found[-1]).tolist(), 1.0)
    return found


def test_it_learns_what_each_sequence_accepts() -> None:
    pace = MeasuredPace(4, 7, COSTS)
    chosen = run(pace, [0.95, 0.0], 200)
    assert all(first >= 5 for first, _ in chosen[-20:]) and sum(second > 0 for _, second in chosen[-50:]) < 5
    assert pace.chosen == sum(chosen[-1]) and pace.gain > 1
    pace.begin(0)  # another sequence, of which nothing is known
    again = run(pace, [0.0, 0.0], 200)
    assert sum(map(sum, again[-50:])) <= 4 and pace.gain >= 0


def test_no_row_has_more_than_it_may() -> None:
    for pace in (MeasuredPace(2, 7, COSTS), FixedPace(7, 5)):
        assert all(count <= limit for count, limit in zip(pace.choose([0, 1], [0, 3], [9, 9]), (0, 3), strict=True))
        pace.planned(0, usual=True)
        pace.observe([], [], [], 0.0)
    assert FixedPace(7, 5).choose([0, 1], [7, 3], [9, 9]) == (5, 3)


def test_drafts_that_do_not_pay_are_said_to_once(caplog: pytest.LogCaptureFixture) -> None:
    dear = StepCosts({2: {2: 1.0, 16: 1.01}}, {2: (0.0,) * 7})
    with caplog.at_level(logging.WARNING, "headrace"):
        run(MeasuredPace(2, 7, dear), [0.9, 0.9], 600)
        assert not caplog.records
        costly = MeasuredPace(2, 7, COSTS)
        for _ in range(1000):
            costly.planned(2, usual=True)
            costly.observe([0, 1], [1, 1], [0, 0], 0.0)
    (record,) = caplog.records
    assert "0 % of the first ones are accepted, 22 % would have to be" in record.getMessage()


class SmallModel:
    """A clock, and a pace whose choices it counts: every step takes the host so many times a plain step's time, if it is more
    than one, and a choice choosing_s besides.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slower: float, choosing_s: float = 0.0) -> None:
        self.now_s, self.choices, self._slower, self._choosing_s = 0.0, list[Choice](), slower, choosing_s
        monkeypatch.setattr(pace_module, "choose", self._choose)
        self.pace = MeasuredPace(4, 7, FAST, lambda: self.now_s)

    def _choose(self, *given: Any) -> Choice:
        self.choices.append(choose(*given))
        self.now_s += self._choosing_s
        return self.choices[-1]

    def steps(self, count: int, chances: list[float], limits: list[int] | None = None) -> list[tuple[int, ...]]:
        found, rng, slots = [], np.random.default_rng(3), list(range(len(chances)))
        for _ in range(count):
            found.append(self.pace.choose(slots, limits or [7] * len(slots), [0] * len(slots)))
            self.pace.planned(sum(found[-1]), usual=True)
            device_s = FAST.seconds(np.array(found[-1]), np.zeros(len(slots), dtype=np.int64), 7)
            host_s = self._slower * 1e-3 if self._slower > 1 else 3e-4
            self.now_s += max(host_s, device_s)
            fell = np.cumprod(rng.random((len(slots), 7)) < np.array(chances)[:, None], axis=1).sum(1)
            self.pace.observe(slots, found[-1], np.minimum(fell, found[-1]).tolist(), max(0.0, device_s - host_s))
        return found


FAST = StepCosts({2: {2: 1e-3, 4: 1.2e-3, 8: 1.5e-3, 16: 2e-3}}, {2: tuple(2e-5 * k for k in range(1, 8))})


def test_a_choice_stays_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    for slower in (1.0, 2.5):
        small = SmallModel(monkeypatch, slower)
        small.steps(200, [0.8, 0.0])
        assert len(small.choices) < 60 and small.pace.gain > 0.5
        before = len(small.choices)
        small.pace.begin(1)
        small.steps(1, [0.8, 0.8])
        assert len(small.choices) == before + 1


@pytest.mark.parametrize(("choosing_s", "kept_s", "more"), [(1e-3, 0.02, 1), (2.2e-3, 0.072, 0), (9e-3, 0.1, 0)])
def test_the_device_waits_little_for_choices(
    monkeypatch: pytest.MonkeyPatch, choosing_s: float, kept_s: float, more: int
) -> None:
    """Of steps of 2.14 ms the host has 1.84 to spare. A choice that takes more is rare, and sequences that come wait for it."""
    small = SmallModel(monkeypatch, 1.0, choosing_s)
    small.steps(200, [0.95, 0.95])
    before, began_s = len(small.choices), small.now_s
    small.steps(500, [0.95, 0.95])
    assert small.now_s - began_s == pytest.approx((len(small.choices) - before) * kept_s, rel=0.2)
    small.pace._kept_steps, before = 5, len(small.choices)
    small.pace.begin(1)
    assert all(small.steps(1, [0.95, 0.95])[0]) and len(small.choices) == before + more


def test_tries_go_on_while_a_choice_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 % of the time, whatever is accepted, and no choice for each."""
    small = SmallModel(monkeypatch, 1.0)
    small.steps(100, [0.0, 0.0])
    before, found = len(small.choices), small.steps(1000, [0.0, 0.0])
    tried = sum(any(drafts) for drafts in found)
    assert 20 <= tried <= 40 and len(small.choices) - before <= 55


def test_drafts_cost_what_the_device_has_no_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    beside, waiting = (SmallModel(monkeypatch, slower).steps(200, [0.6, 0.6])[-1] for slower in (1.0, 2.5))
    assert max(beside) < 7 and waiting == (7, 7)


def test_drafts_that_rows_come_to_have_are_chosen_already_or_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    for slower, more in ((1.0, 1), (2.5, 0)):
        small = SmallModel(monkeypatch, slower)
        small.steps(100, [0.8, 0.8])
        assert all(drafts == (0, 0) for drafts in small.steps(40, [0.8, 0.8], [0, 0]))
        small.steps(1, [0.8, 0.8], [0, 0])
        small.pace._kept_steps = max(small.pace._kept_steps, 5)
        before = len(small.choices)
        assert all(min(drafts) > 2 for drafts in small.steps(1, [0.8, 0.8])) and len(small.choices) == before + more


def beside_prompts(pace: MeasuredPace, clock: list[float], steps: int) -> list[int]:
    """Two rows that accept nothing, in an overlapped loop. Six of eight steps have a prompt's chunks and take the host 50 times
    as long, launched kernel by kernel as they are; of others the host waits for most.
    """
    found, flight = [], list[tuple[tuple[int, ...], bool]]()
    for step in range(steps):
        drafts, usual = pace.choose([0, 1], [7, 7], [0, 0]), step % 8 > 5
        pace.planned(sum(drafts), usual=usual)
        found.append(sum(drafts))
        flight.append((drafts, usual))
        clock[0] += 3e-4 if usual else 0.05
        if len(flight) == 2:
            over, was_usual = flight.pop(0)
            waited_s = 7e-4 if usual and was_usual else 0.0
            clock[0] += waited_s
            pace.observe([0, 1], over, [0, 0], waited_s)
    return found


def test_launching_prompts_is_not_the_host_being_late() -> None:
    """Otherwise drafts would be taken to cost nothing beside them."""
    clock = [0.0]
    pace = MeasuredPace(2, 7, FAST, lambda: clock[0])
    drafts = beside_prompts(pace, clock, 400)
    assert sum(drafts[100:]) < 0.1 * 300 * 2 and pace._loop.host_s == pytest.approx(3e-4) and pace._loop.keeps_up


def test_a_try_that_was_left_out_is_not_paid_for() -> None:
    """Prompts beside it, or no page: the step has no drafts, and the next is a try."""
    nothing = MeasuredPace(2, 7, COSTS, quiet=True)
    for _ in range(200):
        drafts = nothing.choose([0, 1], [7, 7], [0, 0])
        nothing.planned(sum(drafts), usual=True)
        nothing.observe([0, 1], drafts, [0, 0], 1.0)
    while not sum(nothing.choose([0, 1], [7, 7], [0, 0])):
        nothing.planned(0, usual=True)
        nothing.observe([0, 1], [0, 0], [0, 0], 1.0)
    for _ in range(3):
        nothing.planned(0, usual=False)
        nothing.observe([0, 1], [0, 0], [0, 0], 1.0)
        assert nothing.chosen == 0
        assert sum(nothing.choose([0, 1], [7, 7], [0, 0])) > 0
    nothing.planned(2, usual=True)
    nothing.observe([0, 1], [1, 1], [0, 0], 1.0)
    assert nothing.chosen == 2 and not sum(nothing.choose([0, 1], [7, 7], [0, 0]))
