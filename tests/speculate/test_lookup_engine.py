"""Drafts by lookup through scheduler and runner: the tokens are those without drafts, and some were accepted."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.tiny import make_tiny_checkpoint

from headrace.config import EngineConfig
from headrace.engine.build import build_engine
from headrace.engine.model_source import find_model
from headrace.scheduler.drafter import Drafter
from headrace.speculate.lookup import LookupDrafter
from headrace.types import Request, SamplingParams


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("hybrid") / "model", "qwen3_5_text", seed=6)


def requests() -> list[Request]:
    """Prompts that repeat a phrase; an answer that a bias makes repeat itself too, and some that are drawn."""
    made = []
    for number in range(6):
        phrase = [(7 * number + 3 * at) % 90 + 5 for at in range(9)]
        bias = dict.fromkeys(phrase[:1], 100.0) if number % 2 else {}
        params = SamplingParams(temperature=0.0 if number % 3 else 0.8, logit_bias=bias)
        made.append(Request(f"r{number}", tuple(phrase * 3), params, seed=number, max_tokens=60))
    return made


def generate(path: Path, drafter: Drafter | None, loop: str) -> tuple[dict[str, list[int]], int]:
    """Every request's tokens, and how many steps all took."""
    config = EngineConfig(device="cpu", dtype="float64", context=128, max_seqs=4, page_tokens=4, loop=loop)
    core, found = build_engine(find_model(path, config), config, None, drafter).core, defaultdict[str, list[int]](list)
    for request in requests():
        core.add(request)
    while core.has_work:
        for event in core.step():
            found[event.request] += event.tokens
    return dict(found), core.stats().steps


@pytest.mark.parametrize("loop", ["plain", "overlapped"])
def test_lookup_changes_no_token_and_saves_steps(hybrid: Path, loop: str) -> None:
    threads: Any = torch.get_num_threads()
    torch.set_num_threads(1)
    expected, plain_steps = generate(hybrid, None, loop)
    found, steps = generate(hybrid, LookupDrafter(), loop)
    torch.set_num_threads(threads)
    assert found == expected and all(len(tokens) == 60 for tokens in found.values())
    assert steps < 0.9 * plain_steps
