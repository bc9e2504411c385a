"""Drafts by lookup through scheduler and runner: the tokens are those without drafts, and some were accepted."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.tiny import make_tiny_checkpoint
from torch import Tensor

from headrace.config import EngineConfig
from headrace.engine.build import build_engine
from headrace.engine.metrics import Metrics
from headrace.engine.model_source import find_model
from headrace.layers.batch import Pools
from headrace.plan.graph_rows import PromptShape
from headrace.runner import drafting
from headrace.runner.copies import take_in
from headrace.scheduler.drafter import Drafter
from headrace.speculate import device_lookup, pace
from headrace.speculate.costs import StepCosts
from headrace.speculate.device_lookup import DeviceLookup
from headrace.speculate.drafter import Asked, Proposal, Seen
from headrace.speculate.lookup import LookupDrafter
from headrace.types import EngineStats, Request, SamplingParams

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("hybrid") / "model", "qwen3_5_text", seed=6)


def requests() -> list[Request]:
    """Prompts that repeat a phrase; an answer that a bias makes repeat itself too, and some that are drawn."""
    made = []
    for number in range(6):
        phrase = [(7 * number + 3 * at) % 90 + 5 for at in range(9)]
        bias = dict.fromkeys(phrase[:1], 100.0) if number % 2 else {}
        params = SamplingParams(temperature=0.0 if number % 3 else 0.8, logit_bias=bias, seed=number)
        made.append(Request(f"r{number}", tuple(phrase * 3), params, seed=number, max_tokens=60))
    return made


def generate(path: Path, speculate: str, loop: str, drafter: Drafter | None = None) -> tuple[dict[str, list[int]], EngineStats]:
    """Every request's tokens, and what was counted."""
    config = EngineConfig(
        device="cpu", dtype="float64", context=128, max_seqs=4, page_tokens=4, chunk_tokens=20, loop=loop, speculate=speculate
    )
    core, found = build_engine(find_model(path, config), config, None, drafter).core, defaultdict[str, list[int]](list)
    told: dict[str, tuple[int, int]] = {}
    for request in requests():
        core.add(request)
    while core.has_work:
        for event in core.step():
            found[event.request] += event.tokens
            told[event.request] = (event.drafted_tokens, event.accepted_tokens)
    stats = core.stats()
    assert [sum(counts) for counts in zip(*told.values(), strict=True)] == [sum(stats.drafted), sum(stats.accepted)]
    return dict(found), stats


@pytest.mark.parametrize("loop", ["plain", "overlapped"])
def test_lookup_changes_no_token_and_saves_steps(hybrid: Path, loop: str) -> None:
    expected, plain = generate(hybrid, "off", loop)
    assert all(len(tokens) == 60 for tokens in expected.values()) and not plain.drafted
    for speculate, drafter in (("off", LookupDrafter()), ("lookup", None)):
        found, stats = generate(hybrid, speculate, loop, drafter)
        assert found == expected
        assert stats.steps < 0.9 * plain.steps
        assert stats.generation_tokens_total == plain.generation_tokens_total
        drafts = [stats.drafted, stats.accepted]
        assert all(list(counts) == sorted(counts, reverse=True) and counts[0] > 0 for counts in drafts)
        assert all(kept <= made for made, kept in zip(*drafts, strict=True)) and sum(drafts[1]) < sum(drafts[0])


def test_a_plain_loop_on_the_device_drafts_what_the_host_would(hybrid: Path) -> None:
    """Then nothing is uncommitted when either looks; the device is asked where it found something after the row before."""
    counts = []
    for speculate, drafter in (("off", LookupDrafter(most=7)), ("lookup", None)):
        _, stats = generate(hybrid, speculate, "plain", drafter)
        counts.append((stats.steps, stats.drafted, stats.accepted))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("loop", ["plain", "overlapped"])
def test_accepted_drafts_join_the_states_before_a_short_prompt(
    hybrid: Path, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps with prompts that a GPU has captured have no drafts, and take in what was accepted before."""
    taken: list[int] = []

    def counting(pools: Pools, slots: Sequence[int], device: torch.device) -> None:
        assert pools.pending is not None
        taken.append(int(pools.pending[list(slots)].sum()))
        take_in(pools, slots, device)
        assert not pools.pending[list(slots)].any()

    def answer(speculate: str) -> dict[str, list[int]]:
        config = EngineConfig(
            device="cpu", dtype="float64", context=128, max_seqs=4, page_tokens=4, chunk_tokens=40, loop=loop,
            speculate=speculate,
        )
        core, found = build_engine(find_model(hybrid, config), config, None).core, defaultdict[str, list[int]](list)
        scheduler: Any = core._scheduler
        scheduler._drafts._prompts = (PromptShape(40, 4, 3),)
        waiting = requests()
        while waiting or core.has_work:
            if waiting and core.stats().steps % 5 == 0:
                core.add(waiting.pop(0))
            for event in core.step():
                found[event.request] += event.tokens
        return dict(found)

    expected = answer("off")
    monkeypatch.setattr(drafting, "take_in", counting)
    assert answer("lookup") == expected
    assert sum(taken) > 0


class Useless(DeviceLookup):
    """Proposes a token that nobody says, always."""

    def observe(self, seen: Seen) -> Tensor:
        return torch.full_like(seen.batch.slots, self.most)

    def propose(self, asked: Asked) -> Proposal:
        return Proposal(torch.full((len(asked.slots), asked.most), 1))


def test_drafts_that_do_not_pay_are_said_to_once_and_shown(
    hybrid: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """From the device's verification to the log and the metrics."""
    monkeypatch.setattr(pace, "_JUDGED", 4)
    monkeypatch.setattr(device_lookup, "DeviceLookup", Useless)
    config = EngineConfig(device="cpu", dtype="float64", context=128, max_seqs=4, speculate="lookup", draft_tokens=3)
    costs = StepCosts({4: {4: 1.0, 8: 1.25, 16: 1.5}}, {4: (0.05,) * 3}, 64)
    measured = pace.MeasuredPace(4, 3, costs, lambda: 0.0)
    core, shown = build_engine(find_model(hybrid, config), config, None, pace=measured).core, list[EngineStats]()
    with caplog.at_level(logging.WARNING, "headrace"):
        for number in range(8):
            core.add(Request(f"r{number}", (5, 6, 7), SamplingParams(logit_bias={1: -100.0}), number, 40))
        while core.has_work:
            core.step()
            shown.append(core.stats())
    (record,) = (record for record in caplog.records if "drafts do not pay" in record.getMessage())
    assert "0 % of the first ones are accepted, 30 % would have to be" in record.getMessage()
    full = [stats for stats in shown if stats.requests_running == 4]
    assert max(stats.draft_tokens_chosen for stats in full) >= 4 and full[-1].draft_tokens_chosen == 0
    last = full[-1]
    assert last.drafted[0] >= 4 and last.accepted == (0, 0, 0) and last.draft_break_even == pytest.approx(0.3)
    assert last.draft_gain == 0.0
    lines = Metrics(lambda: last).exposition().decode().splitlines()
    assert f'headrace_drafted_tokens_total{{position="1"}} {float(last.drafted[0])}' in lines
    assert 'headrace_accepted_tokens_total{position="1"} 0.0' in lines
    assert "headrace_draft_gain 0.0" in lines and f"headrace_draft_break_even {last.draft_break_even}" in lines
