"""benchmarks/host_step.py drives the loop as an engine does: what it times are whole steps of all users."""

from __future__ import annotations

import pytest
from benchmarks import host_step
from benchmarks.host_step import COSTS, DRAFTS, Clock, Coin, microseconds

from headrace.speculate.pace import FixedPace, MeasuredPace
from headrace.types import StepPlan


def test_every_step_has_a_row_of_each_user_with_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    plans, launch = list[StepPlan](), Coin.launch
    monkeypatch.setattr(host_step, "STEPS", 30)
    monkeypatch.setattr(Coin, "launch", lambda coin, plan: (plans.append(plan), launch(coin, plan))[1])
    clock = Clock()
    for pace in (None, FixedPace(DRAFTS, DRAFTS), MeasuredPace(64, DRAFTS, COSTS, clock, quiet=True)):
        plans.clear()
        took = microseconds(3, pace, clock)
        assert len(took) == 30 and min(took) > 0
        assert all(len(plan.rows) == 3 for plan in plans)
        assert all((row.asked > 0) == (pace is not None) for plan in plans[10:] for row in plan.rows)
