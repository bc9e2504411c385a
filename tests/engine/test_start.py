"""What a start took, beside what was planned."""

from __future__ import annotations

import time

import pytest

from headrace.cache.layout import CacheLayout
from headrace.engine.start import Start
from headrace.plan.budget import Budget, BudgetLine

LINES = {"weights": 1000, "sampler": 1, "workspace": 20, "low-bit workspace": 5, "graphs": 7, "kv pages 0": 300, "padding": 2,
         "kernel buffers": 9}
BUDGET = Budget(tuple(BudgetLine(*line, "") for line in LINES.items()), CacheLayout((), 16, (), 1), 10, 1, 8, ())


def test_every_line_of_the_budget_belongs_to_a_part() -> None:
    start = Start(taken={"weights": 999, "workspace": 24, "graphs": 6, "cache": 303, "kernel buffers": 8})
    found = start.memory(BUDGET)
    assert found == {"weights": (1000, 999), "workspace": (25, 24), "graphs": (7, 6), "cache": (303, 303),
                     "kernel buffers": (9, 8)}
    assert sum(planned for planned, _ in found.values()) == BUDGET.total_bytes
    assert start.notes(BUDGET)[1].endswith(
        "weights 999 of 1,000, workspace 24 of 25, graphs 6 of 7, cache 303 of 303, kernel buffers 8 of 9"
    )


def test_laps_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([5.0, 6.5, 6.75])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    start = Start()
    start.lap("weights")
    start.lap("graphs")
    assert start.laps == [("weights", 1.5), ("graphs", 0.25)]
    assert start.notes(BUDGET) == ["start: weights 1.5 s, graphs 0.2 s"]
