"""Drafts of a model with lookup behind them: the tokens are those without drafts, and long repetitions take few steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.speculate.test_lookup_engine import requests
from tests.speculate.test_mtp_engine import engine, generate, hybrid

from headrace.errors import ConfigError
from headrace.speculate.device_lookup import DeviceLookup
from headrace.speculate.extended import Extended
from headrace.speculate.pace import FixedPace

pytestmark = pytest.mark.usefixtures("one_thread")

__all__ = ["hybrid"]


@pytest.mark.parametrize("loop", ["plain", "overlapped"])
def test_tokens_are_those_without_drafts(hybrid: Path, loop: str) -> None:
    """Behind a head that knows nothing: lookup's drafts are verified where it has some, and nowhere else."""
    expected, _, _ = generate(engine(hybrid, 0), requests())
    built: Any = engine(hybrid, 2, verify_tokens=9, loop=loop)
    built.core._scheduler._drafts._pace = FixedPace(9, 9)
    found, _, stats = generate(built, requests())
    assert found == expected
    assert len(stats.drafted) == 9 and 0 < stats.drafted[2] < stats.drafted[1] <= stats.drafted[0]


@pytest.mark.parametrize("loop", ["plain", "overlapped"])
def test_drafts_go_on_behind_right_ones(hybrid: Path, loop: str) -> None:
    """Behind two drafts of lookup itself there are those that it would have made alone."""
    expected, _, alone = generate(engine(hybrid, 0, speculate="lookup", draft_tokens=7, loop=loop), requests())
    built: Any = engine(hybrid, 0, speculate="lookup", draft_tokens=7, loop=loop)
    proposer, device = built.runner._drafting.proposer, torch.device("cpu")
    slots = built.runner.layout.pool_slots
    proposer.drafter = Extended(DeviceLookup(2, slots, 128, device), DeviceLookup(7, slots, 128, device))
    found, _, stats = generate(built, requests())
    assert found == expected
    assert stats.steps <= alone.steps and stats.accepted[6] > 0
    assert stats.drafted[0] > alone.drafted[0] and stats.drafted[0] > stats.drafted[2] > 0


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"speculate": "mtp", "draft_tokens": 4, "verify_tokens": 3}, "from 4, which draft_tokens are, to 15, not 3"),
        ({"speculate": "mtp", "verify_tokens": 16}, "15 or less, not 16"),
        ({"speculate": "lookup", "verify_tokens": 9}, "not lookup"),
    ],
)
def test_what_cannot_be_extended_is_refused(hybrid: Path, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        engine(hybrid, 0, **settings)


def test_without_a_drafter_nothing_is_extended(hybrid: Path) -> None:
    assert engine(hybrid, 0, speculate="off", verify_tokens=9).runner.layout.drafts == 0
