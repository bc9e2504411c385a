"""A drafter on the device in captured steps, on a GPU: proposals, verification and what is observed, without the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.runner.test_graphs_gpu import CONFIG, CONTEXT, PAGE_TOKENS, PAGES, SLOTS
from tests.support.answered import answered

from headrace.cache.layout import CacheLayout, cache_groups
from headrace.engine.core import EngineCore
from headrace.models import qwen3_5
from headrace.models.decoder import build_decoder
from headrace.plan.dtypes import Dtypes
from headrace.random_weights import make_weights
from headrace.runner.runner import Runner
from headrace.scheduler.scheduler import Scheduler
from headrace.speculate.device_lookup import DeviceLookup
from headrace.speculate.pace import FixedPace, MeasuredPace, Pace
from headrace.types import EngineStats, Request, SamplingParams

pytestmark = pytest.mark.gpu
MOST = 7


def make_runner(*, drafts: int, graphs: bool) -> Runner:
    spec, device = qwen3_5.spec(CONFIG), torch.device("cuda")
    decoder = build_decoder(spec, dtype=torch.float16, device=device)
    make_weights(decoder)
    decoder.prepare()
    layout = CacheLayout(cache_groups(spec), PAGE_TOKENS, (PAGES,), SLOTS, True, drafts)
    return Runner(
        spec, decoder, layout, Dtypes("float16", "float16", "float16"), device, context=CONTEXT, chunk_tokens=128,
        graphs=graphs, make_drafter=(lambda pools: DeviceLookup(drafts, SLOTS + 1, CONTEXT, device)) if drafts else None,
    )


def generate(runner: Runner, depth: int, pace: Pace | None) -> tuple[dict[str, list[int]], EngineStats]:
    """Prompts that repeat a phrase, and every second answer too, drawn in every way."""
    core = EngineCore(Scheduler(runner.layout, chunk_tokens=128, pace=pace), runner, depth=depth)
    requests = []
    for number in range(30):
        phrase = [(7 * number + 3 * at) % 900 + 5 for at in range(9)]
        params = SamplingParams(
            temperature=float(number % 3 == 0), top_k=20, logit_bias=dict.fromkeys(phrase[:1], 100.0) if number % 2 else {},
            frequency_penalty=0.1 * (number % 5 == 0),
        )
        requests.append(Request(f"r{number}", tuple(phrase * 3), params, number, 20 + number))
    return answered(core, requests), core.stats()


@pytest.mark.parametrize(("depth", "graphs"), [(1, True), (2, True), (2, False)])
def test_tokens_are_those_without_drafts(depth: int, graphs: bool) -> None:
    expected, plain = generate(make_runner(drafts=0, graphs=True), depth, None)
    runner: Any = make_runner(drafts=MOST, graphs=graphs)
    if graphs:
        costs = runner.step_costs(CONTEXT)
        assert costs is not None and all(s > 0 for steps in costs.steps.values() for s in steps.values())
        generate(runner, depth, MeasuredPace(SLOTS, MOST, costs))
    found, stats = generate(runner, depth, FixedPace(MOST, MOST))
    same = {name: found[name] == tokens for name, tokens in expected.items()}
    forced, free = ([same[f"r{number}"] for number in range(first, 30, 2)] for first in (1, 0))
    assert all(forced) and sum(free) >= 8, same  # others come to a near tie, which the number of rows decides
    assert sum(stats.accepted) > 100 and stats.steps < 0.9 * plain.steps
