"""Masks of allowed tokens over a decoder of whole numbers: captured steps on a GPU give the tokens of a CPU's plain loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.runner.test_graphs import CONTEXT, SLOTS, requests, scripted, tokens_of
from tests.support.scripted_masks import Allowed, Grammar, at_most, by_last
from tests.support.stub_decoder import SPEC, VOCAB, StubDecoder

from headrace.cache.layout import CacheLayout, cache_groups
from headrace.engine.core import EngineCore
from headrace.plan.dtypes import Dtypes
from headrace.runner.runner import Runner
from headrace.runner.sequence_masks import SequenceMasks
from headrace.scheduler.scheduler import Scheduler
from headrace.speculate.device_lookup import DeviceLookup
from headrace.speculate.pace import FixedPace
from headrace.types import Request

MOST, COUNT, END = 7, 30, 11


def in_turn(tokens: tuple[int, ...]) -> Allowed:
    """20 to 28 and again, which lookup proposes."""
    return frozenset((20 + (tokens[-1] - 19) % 9 if 20 <= tokens[-1] < 29 else 20,))


FOLLOWING = (by_last(VOCAB, 0.2), by_last(VOCAB, 0.6, seed=1), at_most(12, frozenset(range(20, 27)), END), in_turn)


def grammar_of(request: Request) -> Callable[[tuple[int, ...]], Allowed] | None:
    """None for every fifth, and for those that may not end before min_tokens."""
    number = int(request.id[1:])
    return None if number % 5 == 4 or request.params.min_tokens else FOLLOWING[number % 4]


def masks(request: Request) -> SequenceMasks | None:
    following = grammar_of(request)
    return None if following is None else Grammar(request, following, VOCAB)


def engine(device: str, depth: int, *, drafter: Any = None, lookup: bool = False) -> EngineCore:
    """Captured on a GPU."""
    drafts, place, decoder = drafter.most if drafter else MOST * lookup, torch.device(device), StubDecoder()
    layout = CacheLayout(cache_groups(SPEC), 4, (160,), SLOTS, True, drafts)
    runner = Runner(
        SPEC, decoder, layout, Dtypes("float32", "float32", "float32"), place, context=CONTEXT, chunk_tokens=32,  # type: ignore[arg-type]
        graphs_required=True, make_masks=masks,
        make_drafter=(lambda pools: DeviceLookup(drafts, SLOTS + 1, CONTEXT, place)) if lookup else None,
    )
    pace = FixedPace(MOST, MOST) if lookup else None
    return EngineCore(Scheduler(layout, chunk_tokens=32, drafter=drafter, pace=pace), runner, depth=depth)


def plain() -> dict[str, list[int]]:
    found = tokens_of(engine("cpu", 1), requests(COUNT))
    for request in requests(COUNT):
        following, tokens = grammar_of(request), (request.prompt[-1], *found[request.id])
        if following is not None:
            assert all(token in following(tokens[:n]) for n, token in enumerate(tokens) if n)
    return found


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("drafted", ["off", "lookup", "scripted"])
def test_the_tokens_are_those_of_the_plain_loop(device: str, depth: int, drafted: str) -> None:
    expected = plain()
    drafter = scripted(expected, MOST) if drafted == "scripted" else None
    core = engine(device, depth, drafter=drafter, lookup=drafted == "lookup")
    assert tokens_of(core, requests(COUNT)) == expected
    assert drafted == "off" or sum(core.stats().accepted) > 20


@pytest.mark.gpu
@pytest.mark.parametrize("drafted", ["off", "lookup", "scripted"])
def test_masks_wait_for_events_alone(drafted: str) -> None:
    made = [replace(each, prompt=each.prompt[:3], max_tokens=20) for each in requests(6)]
    drafter = scripted({each.id: [1] * 20 for each in made}, MOST) if drafted == "scripted" else None
    core = engine("cuda", 2, drafter=drafter, lookup=drafted == "lookup")
    for request in made:
        core.add(request)
    core.step()
    core.step()
    runner: Any = core._runner
    plan = core._scheduler.plan()
    assert plan is not None and plan.rows and runner._allowed._any
    torch.cuda.set_sync_debug_mode("error")
    try:
        runner.launch(plan)
    finally:
        torch.cuda.set_sync_debug_mode("default")
