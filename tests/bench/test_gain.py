"""`headrace bench gain`: what is compared, on a tiny model with made-up costs, and its picture."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console
from tests.support.tiny import make_tiny_checkpoint

from headrace.bench import gain_plot
from headrace.bench.scenarios import gain
from headrace.bench.scenarios.gain import Gain, share
from headrace.bench.text_engine import TextEngine
from headrace.errors import ConfigError
from headrace.runner.runner import Runner
from headrace.speculate.costs import StepCosts
from headrace.speculate.pace import Pace

COSTS = StepCosts({2: {2: 1e-3, 4: 1.25e-3, 8: 1.5e-3}}, {2: (1e-4, 2e-4, 3e-4)}, 64)


def made(users: int, drafter: str, k: int | None, rate: float) -> Gain:
    return Gain(users, drafter, k, rate, 1.0, 0.0, 1.0, None, 1)


FOUND = [
    made(1, "off", 0, 10.0), made(1, "mtp", 1, 20.0), made(1, "mtp", 3, 16.0), made(1, "mtp", None, 19.0),
    made(1, "lookup", 0, 10.0), made(1, "lookup", 7, 8.0), made(1, "lookup", None, 9.0), made(8, "off", 0, 90.0),
    made(8, "mtp", 0, 80.0), made(8, "mtp", None, 84.0),
]


def test_a_share_is_of_the_same_engines_best_or_of_none_there() -> None:
    assert share(FOUND, 1, "mtp") == 19 / 20 and share(FOUND, 1, "lookup") == 9 / 10 and share(FOUND, 8, "mtp") == 84 / 80


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    file.write_text("".join(json.dumps({"kind": "prose", "text": f"{n} and the world " * 40}) + "\n" for n in range(3)))
    return file


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model", seed=6, mtp=True)


def test_a_run(model: Path, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "step_costs", lambda self, context: COSTS)
    settings = gain.Settings(
        model=str(model), text=(str(texts),), kind="prose", way=("mtp:3", "mtp:1"), users=(2,), device="cpu", dtype="float32",
        answers=3, rounds=2, prompt_tokens=200, tokens=9, seeded=True,
    )
    paces: list[Pace | None] = []
    together = TextEngine.together
    monkeypatch.setattr(
        TextEngine, "together", lambda self, requests, pace: (paces.append(pace), together(self, requests, pace))[1]
    )
    found = gain.run(settings, Console(quiet=True))
    rounds = [paces[begin : begin + 4] for begin in (0, 4, 8)]  # of the head's four ways
    assert len({id(of[0]) for of in rounds}) == 3 and all({id(each) for each in of} == {*map(id, paces[:4])} for of in rounds)
    assert [(each["drafter"], each["k"]) for each in found["gains"]] == [
        ("off", 0), ("mtp", 0), ("mtp", 3), ("mtp", 1), ("mtp", None),
    ]
    off, none, three, one, controller = found["gains"]
    assert (off["drafts"], off["tokens_a_step"], off["device_ms"]) == (0, 1, None)
    assert (none["drafts"], none["tokens_a_step"], none["device_ms"]) == (0, 1, pytest.approx(1.0))
    assert 2 < three["drafts"] <= 3 and 0.5 < one["drafts"] <= 1 and controller["device_ms"] is None
    assert three["device_ms"] == pytest.approx(1.8) and one["device_ms"] == pytest.approx(1.35)
    assert found["shares"] == {"mtp": {2: controller["tokens_per_s"] / max(e["tokens_per_s"] for e in (none, three, one))}}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"users": (0,)}, "--users must be 1"), ({"text": ()}, "--text is needed"),
        ({"kind": "chat"}, "no text of the kind chat"),
        ({"prompt_tokens": 100}, "no text of the kind prose that is short"), ({}, "measured on captured steps"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, object], why: str, model: Path, texts: Path) -> None:
    given = {"model": str(model), "text": (str(texts),), "kind": "prose", "way": ("mtp:1",), "users": (1,), "device": "cpu",
             "answers": 1, "tokens": 4} | settings
    with pytest.raises(ConfigError, match=why):
        gain.run(gain.Settings(**given), Console(quiet=True))


def test_nothing_is_measured_without_costs(model: Path, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even what needs none: the refusal would come minutes later."""
    monkeypatch.setattr(TextEngine, "together", lambda self, requests, pace: pytest.fail("a step was measured"))
    settings = gain.Settings(model=str(model), text=(str(texts),), kind="prose", way=("mtp:1",), users=(1,), device="cpu")
    with pytest.raises(ConfigError, match="needs a GPU"):
        gain.run(settings, Console(quiet=True))


def test_the_picture_has_a_panel_for_each_number_of_users(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    gain_plot.draw([asdict(each) for each in FOUND], tmp_path / "gain.png")
    assert (tmp_path / "gain.png").stat().st_size > 10_000
    with pytest.raises(ConfigError, match="nowhere"):
        gain_plot.draw([asdict(each) for each in FOUND], tmp_path / "nowhere" / "gain.png")
