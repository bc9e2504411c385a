"""`headrace bench speculate`: a run on a CPU with made-up costs, what it expects of them, and what it refuses."""

from __future__ import annotations

import pytest
from rich.console import Console

from headrace.bench.scenarios import speculate
from headrace.bench.speculating import expected
from headrace.errors import ConfigError
from headrace.runner.runner import Runner
from headrace.speculate.costs import StepCosts

COSTS = StepCosts({2: {2: 1.0, 4: 1.25, 8: 1.5, 16: 2.0}}, {2: tuple(0.01 * k for k in range(1, 8))}, 64)


def test_what_is_expected_is_tokens_over_seconds() -> None:
    assert expected([0.5, 0.0], 0, COSTS, 7, 5, 20) == pytest.approx(2 / 1.0)
    assert expected([0.5, 0.0], 3, COSTS, 7, 5, 20) == pytest.approx((2 + 0.5 + 0.25 + 0.125) / (1.5 + 0.03))
    never, always = (expected([chance] * 2, None, COSTS, 7, 100, 400) for chance in (0.0, 1.0))
    assert never == pytest.approx(2.0, rel=0.02) and always == pytest.approx(16 / 2.07, rel=0.02)


def test_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "step_costs", lambda self, context: COSTS)
    monkeypatch.setattr(speculate, "_CONTEXT", 40)
    monkeypatch.setattr(speculate, "_LEARNING", 4)
    monkeypatch.setattr(speculate, "_LEAST_STEPS", 6)
    settings = speculate.Settings(
        device="cpu", random_weights="smollm2-135m", users=(2,), acceptance=("mixed", "1"), drafts=(0, 3), tokens=6
    )
    found = speculate.run(settings, Console(quiet=True))
    assert [(run["users"], run["acceptance"]) for run in found["runs"]] == [(2, "mixed"), (2, "1")]
    for run in found["runs"]:
        off, three, controller = run["ways"]
        assert [way["drafts"] for way in (off, three)] == [0.0, 3.0] and controller["drafts"] >= 0
        assert run["share"] == controller["tokens_per_s"] / max(off["tokens_per_s"], three["tokens_per_s"])
    assert found["runs"][1]["ways"][1]["tokens_per_s"] > found["runs"][0]["ways"][1]["tokens_per_s"]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"random_weights": None}, "only with --random-weights"), ({"users": (0,)}, "--users must be 1"),
        ({"acceptance": ("1.2",)}, "--acceptance must be"), ({"acceptance": ("often",)}, "--acceptance must be"),
        ({"device": "cpu"}, "measured on captured steps"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, object], why: str) -> None:
    given = {"random_weights": "smollm2-135m", "device": "cpu", "users": (1,)} | settings
    with pytest.raises(ConfigError, match=why):
        speculate.run(speculate.Settings(**given), Console(quiet=True))
