"""Synthetic acceptance: a coin with the chance that was asked for, keyed by seed and position, and where it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.tiny import make_tiny_checkpoint

from headrace.config import EngineConfig
from headrace.engine.build import build_engine
from headrace.engine.model_source import find_model
from headrace.errors import ConfigError
from headrace.kernels.sample.slots import SlotState
from headrace.runner.coin import Coin
from headrace.types import Request, SamplingParams

SHAPE: dict[str, Any] = {"device": "cpu", "random_weights": "smollm2-135m", "context": 128, "max_seqs": 4}


def test_the_coin_falls_as_often_as_it_should_and_never_lets_a_wrong_draft_pass() -> None:
    state = SlotState.allocate(3, 50, torch.device("cpu"))
    state.integers[:, 0] = torch.tensor([5, 6, 7])
    coin, count = Coin(state, 0.0), 20_000
    coin.chances[:] = torch.tensor([0.0, 0.3, 1.0])
    drafts, tokens = torch.randint(0, 50, (2, count), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(count)
    for slot, chance in enumerate((0.0, 0.3, 1.0)):
        slots = torch.full((count,), slot)
        decided = coin.decide(tokens, drafts, slots, positions)
        assert float((decided == drafts).double().mean()) == pytest.approx(chance, abs=0.02)  # six deviations
        assert int(decided.min()) >= 0 and int(decided.max()) < 50
        assert torch.equal(decided, coin.decide(tokens, drafts, slots, positions))
        kept = (decided != drafts) & (tokens != drafts)
        assert torch.equal(decided[kept], tokens[kept])
    assert not torch.equal(*(coin.decide(tokens, drafts, torch.full((count,), 1), at) for at in (positions, positions + 1)))


def test_an_engine_accepts_what_its_coin_accepts() -> None:
    config = EngineConfig(**SHAPE, speculate="lookup", draft_tokens=3, synthetic_acceptance=0.5)
    built = build_engine(find_model(None, config), config, None)
    core, made = built.core, 0
    for chance in (0.6, 1.0):
        built.runner.accept([chance] * 4)
        before = core.stats()
        for number in range(4):
            params = SamplingParams(temperature=float(number % 2), presence_penalty=float(number // 2))
            core.add(Request(f"r{made}", (1, 2, 3), params, made, 48))
            made += 1
        while core.has_work:
            core.step()
        after = core.stats()
        first, kept = (now[0] - then[0] for now, then in ((after.drafted, before.drafted), (after.accepted, before.accepted)))
        assert first >= 44
        assert kept / first == pytest.approx(chance, abs=0.2)  # of eighty rows, four deviations


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"synthetic_acceptance": 1.5, "speculate": "lookup"}, "from 0 to 1"),
        ({"synthetic_acceptance": 0.5, "speculate": "off"}, "nothing is drafted"),
    ],
)
def test_it_is_refused(settings: dict[str, Any], why: str) -> None:
    config = EngineConfig(**SHAPE, **settings)
    with pytest.raises(ConfigError, match=why):
        build_engine(find_model(None, config), config, None)


def test_a_models_own_drafts_are_never_accepted_by_a_coin(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", "qwen3", seed=1)
    config = EngineConfig(device="cpu", context=64, speculate="lookup", synthetic_acceptance=0.5)
    with pytest.raises(ConfigError, match="for --random-weights"):
        build_engine(find_model(checkpoint, config), config, None)
