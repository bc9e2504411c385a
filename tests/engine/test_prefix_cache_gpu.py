"""On a GPU, in 16 bits: a hit has the bits of a cold run that is cut where the hit begins, with graphs, overlapped or not."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.runner.test_graphs_gpu import CONFIG

from headrace.cache.checkpoint_places import CheckpointPlaces
from headrace.cache.layout import CacheLayout, cache_groups
from headrace.cache.policy.flops_per_byte import FlopsPerByte
from headrace.cache.prefix.settings import PrefixSettings
from headrace.engine.core import EngineCore
from headrace.models import qwen3_5
from headrace.models.decoder import build_decoder
from headrace.plan.dtypes import Dtypes
from headrace.random_weights import make_weights
from headrace.runner.runner import Runner
from headrace.scheduler.scheduler import Scheduler
from headrace.types import Request, SamplingParams, TokenLogprob

PAGE_TOKENS, CONTEXT, SLOTS = 16, 512, 4
SETTINGS = PrefixSettings(FlopsPerByte(10.0, 1.0, 4, 30), 16, CheckpointPlaces(64, 16))
DEVICES = [
    pytest.param("cpu", "float32"), *(pytest.param("cuda", each, marks=pytest.mark.gpu) for each in ("bfloat16", "float16"))
]
Answer = tuple[list[int], list[TokenLogprob], int]


PAGES = SLOTS * CONTEXT // PAGE_TOKENS


def make_runner(device: str, dtype: str, kv: str = "", pages: int = PAGES, host_pages: int = 0) -> Runner:
    spec = qwen3_5.spec(CONFIG)
    decoder = build_decoder(spec, dtype=getattr(torch, dtype), device=torch.device(device))
    make_weights(decoder)
    decoder.prepare()
    dtypes: Any = Dtypes(dtype, kv or dtype, "float32" if dtype == "float32" else "float16")  # type: ignore[arg-type]
    groups = cache_groups(spec)
    layout = CacheLayout(groups, PAGE_TOKENS, (pages,), SLOTS, device == "cuda", 0, 12)
    host = CacheLayout(groups, PAGE_TOKENS, (host_pages,), 0, checkpoints=24) if host_pages else None
    return Runner(spec, decoder, layout, dtypes, torch.device(device), context=CONTEXT, chunk_tokens=128, host=host)


class Engine:
    """A runner and a loop, whose scheduler is forgotten, and with it all that is cached, whenever a cold run is wanted."""

    def __init__(self, runner: Runner, depth: int, settings: PrefixSettings = SETTINGS) -> None:
        self._runner, self._depth, self._settings = runner, depth, settings
        self.forget()

    def forget(self) -> None:
        scheduler = Scheduler(
            self._runner.layout, chunk_tokens=128, prefixes=self._settings, memory=self._runner.host
        )
        self._core = EngineCore(scheduler, self._runner, depth=self._depth)

    @property
    def restores(self) -> int:
        return self._core.stats().restores_total

    @property
    def restored(self) -> int:
        """Copies back that were timed."""
        return sum(sum(each.counts) for each in self._core.stats().restore_times)

    def answer(self, request: Request) -> Answer:
        return self.answers([request])[request.id]

    def answers(self, requests: list[Request], steps: int = 0) -> dict[str, Answer]:
        """Each request comes `steps` steps after the one before."""
        made: dict[str, Answer] = {}
        for request in requests:
            self._core.add(request)
            made[request.id] = ([], [], 0)
            for _ in range(steps):
                self._step(made)
        while self._core.has_work:
            self._step(made)
        return made

    def _step(self, made: dict[str, Answer]) -> None:
        for event in self._core.step():
            assert event.finish_reason != "error", event.error
            tokens, logprobs, _ = made[event.request]
            made[event.request] = [*tokens, *event.tokens], [*logprobs, *event.logprobs], event.cached_tokens


@pytest.mark.parametrize(("device", "dtype"), DEVICES)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_hit_has_the_bits_of_a_cold_run_cut_there(device: str, dtype: str, depth: int) -> None:
    engine, rng = Engine(make_runner(device, dtype), depth), random.Random(3)
    sampling = SamplingParams(temperature=0.8, top_k=20, logprobs=3)
    shared_tokens = (1, 16, 17, 63, 200) if device == "cuda" else (17, 64)
    for shared in shared_tokens:
        for more in (1, 16, 70) if device == "cuda" else (1, 20):
            prefix = tuple(rng.randrange(1000) for _ in range(shared))
            first, second = ((*prefix, mark, *(rng.randrange(1000) for _ in range(more - 1))) for mark in (1, 2))
            asked = Request("cold", second, sampling, 5, 12, message_ends=(shared,))
            engine.forget()
            tokens, logprobs, cached = engine.answer(asked)
            assert cached == 0
            engine.forget()
            engine.answer(replace(asked, id="before", prompt=first))
            assert engine.answer(replace(asked, id="hit")) == (tokens, logprobs, shared)


@pytest.mark.gpu
@pytest.mark.parametrize("kv", ["bfloat16", "float8_e4m3fn", "int8"])
def test_the_next_turn_is_close_to_a_cold_one(kv: str) -> None:
    """The answer's keys, values and state were computed token by token, and are computed in chunks here: not the same bits."""
    engine, rng = Engine(make_runner("cuda", "bfloat16", kv), 2), random.Random(4)
    known = tuple(rng.randrange(1000) for _ in range(150))
    sampling = SamplingParams(temperature=0.0, logprobs=0)
    for turn in range(4):
        tokens, _, cached = engine.answer(Request(f"t{turn}", known, sampling, 5, 20))
        assert turn == 0 or cached == len(known) - 9 - 1
        known = (*known, *tokens, *(rng.randrange(1000) for _ in range(9)))
    _, warm, cached = engine.answer(Request("warm", known, sampling, 5, 1))
    engine.forget()
    _, cold, _ = engine.answer(Request("cold", known, sampling, 5, 1))
    assert cached == len(known) - 10 and warm[0].logprob == pytest.approx(cold[0].logprob, abs=0.25)


@pytest.mark.parametrize(("device", "dtype"), DEVICES)
@pytest.mark.parametrize("depth", [1, 2])
def test_what_comes_back_from_host_memory_has_the_bits_that_went_there(device: str, dtype: str, depth: int) -> None:
    """A conversation goes on where its pages were given to another in between, as where they were not."""
    rng = random.Random(9)
    document, other = (tuple(rng.randrange(1000) for _ in range(count)) for count in (203, 330))
    sampling, found = SamplingParams(temperature=0.7, logprobs=2), []
    for pages, host_pages in ((64, 0), (24, 64)):
        runner = make_runner(device, dtype, "", pages, host_pages)
        host = CacheLayout(runner.layout.groups, PAGE_TOKENS, (host_pages,), 0, checkpoints=24) if host_pages else None
        engine = Engine(runner, depth, replace(SETTINGS, host=host))
        answers = [engine.answer(Request("first", document, sampling, 1, 30))]
        engine.answer(Request("other", other, sampling, 2, 20))
        again = (*document, *answers[0][0], *range(40))
        answers.append(engine.answer(Request("again", again, sampling, 3, 30)))
        assert engine.restores == (host_pages > 0)
        found.append(answers)
        runner.close()
    assert found[0] == found[1] and found[0][1][2] == 203 + 29


@pytest.mark.parametrize(("device", "dtype"), DEVICES[:2])
@pytest.mark.parametrize("depth", [1, 2])
def test_others_go_on_while_something_comes_back_from_host_memory(device: str, dtype: str, depth: int) -> None:
    """Two conversations on pages for one of them, beside a third that is being answered all the time."""
    rng = random.Random(12)
    known = {name: tuple(rng.randrange(1000) for _ in range(203)) for name in "ab"}
    runner = make_runner(device, dtype, "", 22, 160)
    host = CacheLayout(runner.layout.groups, PAGE_TOKENS, (160,), 0, checkpoints=24)
    engine, cold = Engine(runner, depth, replace(SETTINGS, host=host)), Engine(make_runner(device, dtype), depth)
    greedy = SamplingParams(temperature=0.0, logprobs=0)
    for turn in range(6):
        name = "ab"[turn % 2]
        asked = Request(f"{turn}", known[name], greedy, turn, 8)
        beside = Request(f"beside {turn}", tuple(rng.randrange(1000) for _ in range(20)), greedy, turn, 40)
        made = engine.answers([beside, asked], 3)
        tokens, logprobs, cached = made[asked.id]
        assert turn < 2 or cached == len(known[name]) - 11, "but the question and the last answer's end"
        cold.forget()
        _, alone, _ = cold.answer(replace(asked, id=f"cold {turn}", max_tokens=1))
        assert logprobs[0].logprob == pytest.approx(alone[0].logprob, abs=0.25) and len(made[beside.id][0]) == 40
        known[name] = (*known[name], *tokens, *(rng.randrange(1000) for _ in range(10)))
    assert engine.restores >= 3 and engine.restored >= 2
    runner.close()
