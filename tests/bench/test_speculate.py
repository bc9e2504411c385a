"""`headrace bench speculate`: a run on a CPU with made-up costs, what it expects of them, and what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from headrace.bench.expected_rate import expected
from headrace.bench.scenarios import speculate
from headrace.bench.speculation_plot import Sweep, draw, read_sweeps, sweeps_of
from headrace.errors import ConfigError, HeadraceError
from headrace.runner.runner import Runner
from headrace.speculate.costs import StepCosts

COSTS = StepCosts({2: {2: 1.0, 4: 1.25, 8: 1.5, 16: 2.0}}, {2: tuple(0.01 * k for k in range(1, 8))}, 64)


def test_what_is_expected_is_tokens_over_seconds() -> None:
    assert expected([0.5, 0.0], 0, COSTS, 7, 5, 20) == pytest.approx(2 / 1.0)
    assert expected([0.5, 0.0], 3, COSTS, 7, 5, 20) == pytest.approx((2 + 0.5 + 0.25 + 0.125) / (1.5 + 0.03))
    never, always = (expected([chance] * 2, None, COSTS, 7, 100, 400) for chance in (0.0, 1.0))
    assert never == pytest.approx(2.0, rel=0.02) and always == pytest.approx(16 / 2.07, rel=0.02)


def test_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Runner, "step_costs", lambda self, context: COSTS)
    monkeypatch.setattr(speculate, "_CONTEXT", 40)
    monkeypatch.setattr(speculate, "_LEARNING", 3)
    monkeypatch.setattr(speculate, "_SETTLING", 1)
    monkeypatch.setattr(speculate, "_LEAST_STEPS", 4)
    settings = speculate.Settings(
        device="cpu", random_weights="smollm2-135m", users=(2,), acceptance=("mixed", "1"), drafts=(0, 9), tokens=4,
        plot=str(tmp_path / "sweep.svg"), speculate=("lookup",),
    )
    results = speculate.run(settings, Console(quiet=True))
    (found,) = results["sweeps"]
    assert found["speculate"] == "lookup" and (tmp_path / "sweep.svg").stat().st_size > 10_000
    (again,) = sweeps_of(json.loads(json.dumps(results)))
    assert again.costs == COSTS and list(again.runs) == found["runs"]
    assert [(run["users"], run["acceptance"]) for run in found["runs"]] == [(2, "mixed"), (2, "1")]
    for run in found["runs"]:
        off, seven, controller = run["ways"]
        assert [way["drafts"] for way in (off, seven)] == [0.0, 7.0] and controller["drafts"] >= 0
        assert run["share"] == controller["tokens_per_s"] / max(way["tokens_per_s"] for way in (off, seven))
    assert found["runs"][1]["ways"][1]["tokens_per_s"] > found["runs"][0]["ways"][1]["tokens_per_s"]


def test_a_picture_of_what_is_expected_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = StepCosts({1: {1: 1.0, 8: 1.2}, 4: {4: 1.2, 8: 1.4, 32: 3.0}}, {1: (0.1,) * 4, 4: (0.2,) * 4}, 64)
    sweeps = [Sweep("mtp", 4, costs, ()), Sweep("lookup", 4, costs, ())]
    draw(sweeps, tmp_path / "two.png")
    assert (tmp_path / "two.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ConfigError, match=r"there/two\.png"):
        draw(sweeps, tmp_path / "there" / "two.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(HeadraceError, match=r"headrace\[plot\]"):
        draw(sweeps, tmp_path / "none.png")


def test_records_of_others_are_not_read(tmp_path: Path) -> None:
    for number, text in enumerate(("", "[]", '{"benchmark": "serve", "results": {"runs": []}}', '{"benchmark": "speculate"}')):
        (tmp_path / f"{number}.json").write_text(text)
    assert read_sweeps([*tmp_path.iterdir(), tmp_path / "missing.json"]) == []


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"random_weights": None}, "only with --random-weights"), ({"users": (0,)}, "--users must be 1"),
        ({"acceptance": ("1.2",)}, "--acceptance must be"), ({"acceptance": ("often",)}, "--acceptance must be"),
        ({"device": "cpu"}, "measured on captured steps"),
        ({"speculate": ("off",)}, "--speculate must be lookup, mtp or dflash"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, object], why: str) -> None:
    given = {"random_weights": "smollm2-135m", "device": "cpu", "users": (1,)} | settings
    with pytest.raises(ConfigError, match=why):
        speculate.run(speculate.Settings(**given), Console(quiet=True))
