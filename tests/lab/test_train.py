"""Training in small: it learns, and a run in pieces is the run in one."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lab.batches import END_OF_TEXT_ID, Windows, in_order, streams
from lab.schedule import rate
from lab.shape import Shape
from lab.train import Plan, train

PLAN = Plan(steps=40, joins=5, rows=8, length=24, report=20)
CPU = torch.device("cpu")


def test_learns(work: Path, small: Shape) -> None:
    _, progress = train(work, small, PLAN, CPU)
    (first, *_, last) = progress.losses
    assert progress.step == 40 and [step for step, *_ in progress.losses] == [20, 40]
    assert last[2] < 2.5 < np.log(small.vocabulary) and last[1] < first[1]


def test_pieces_are_the_whole(work: Path, small: Shape) -> None:
    whole, _ = train(work, small, replace(PLAN, steps=12), CPU)
    (work / "model-0.pt").unlink()
    for _ in range(20):
        pieces, progress = train(work, small, replace(PLAN, steps=12, seconds=0.01), CPU)
        if progress.step == 12:
            break
    assert progress.step == 12
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, pieces.state_dict()[name]), name


def test_conversations_may_come_later(work: Path, small: Shape) -> None:
    """Training stops where they are wanted, and goes on with them as if they had been there."""
    plan = replace(PLAN, steps=9)
    whole, _ = train(work, small, plan, CPU)
    (work / "model-0.pt").unlink()
    for part in ("train", "held-out"):
        (work / f"{part}-chat.npy").rename(work / f"{part}-later.npy")
    _, progress = train(work, small, plan, CPU)
    assert progress.step == 5 == train(work, small, plan, CPU)[1].step
    for part in ("train", "held-out"):
        (work / f"{part}-later.npy").rename(work / f"{part}-chat.npy")
    pieces, progress = train(work, small, plan, CPU)
    assert progress.step == 9
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), pieces.parameters(), strict=True))


def test_another_seed_draws_other_windows(work: Path) -> None:
    tokens = streams(work, "train")
    assert (Windows(tokens, 16, 0).of_step(3, 4) == Windows(tokens, 16, 0).of_step(3, 4)).all()
    assert (Windows(tokens, 16, 0).of_step(3, 4) != Windows(tokens, 16, 1).of_step(3, 4)).any()


def test_windows_of_conversations_begin_with_one() -> None:
    ids = np.tile(np.array([END_OF_TEXT_ID, 5, 6, 7, 8, 9, 10], np.uint16), 20)
    windows = Windows({"chat": ids, "prose": ids}, 16, 0).of_step(0, 64)
    begin = windows[:, 0] == END_OF_TEXT_ID
    assert 24 < begin.sum() < 56  # all of chat's, one of seven of the prose's
    assert len({tuple(window) for window in windows[~begin].tolist()}) == 6
    assert (Windows({"chat": ids}, 16, 0).of_step(0, 8)[:, 0] == END_OF_TEXT_ID).all()


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="lab.tokenizer"):
        streams(tmp_path, "train")
    with pytest.raises(ValueError, match="prose: 5 tokens are less than a window of 16"):
        Windows({"prose": np.zeros(5, np.uint16)}, 16, 0)


def test_windows_in_order_share_one_token() -> None:
    assert in_order(np.arange(11, dtype=np.uint16), 4).tolist() == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]


def test_rates_go_up_and_down_to_nothing() -> None:
    rates = [rate(step, 1000) for step in range(1001)]
    assert rates[0] == 1 / 40 and max(rates) == 1 and rates[-1] == 0 and rates[40:400] == [1.0] * 360


@pytest.mark.parametrize("stage", ["text", "dialogue", "tokenizer", "baseline", "train", "own", "distil", "export", "held_out",
                                   "report"])
def test_every_stage_says_what_it_wants(
    stage: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [stage])
    with pytest.raises(SystemExit):
        importlib.import_module(f"lab.{stage}").main()
    assert "--work" in capsys.readouterr().err
