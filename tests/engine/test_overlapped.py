"""The overlapped loop gives the plain loop's tokens: over a fake device by property, and on tiny models in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fake_device import VOCAB, FakeDevice, expected_output
from tests.support.tiny import make_tiny_checkpoint

from headrace import LLM, Completion, SamplingParams
from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.engine.core import EngineCore
from headrace.scheduler.scheduler import Scheduler
from headrace.types import EngineStats, Request, StepPlan, StepResult, TokenLogprob

CONTEXT = 40
FULL, WINDOW = CacheGroup(0, None, (0,), 1), CacheGroup(1, 7, (1,), 1)


@dataclass
class Done:
    outcome: StepResult

    def result(self) -> StepResult:
        return self.outcome


class FakeRunner:
    """The fake device, which runs a plan when it is launched, as a stream does in order."""

    def __init__(self, layout: CacheLayout) -> None:
        self._device = FakeDevice(layout)

    def launch(self, plan: StepPlan) -> Done:
        return Done(self._device.run(plan))

    def close(self) -> None:
        """Nothing to release."""


@st.composite
def requests(draw: st.DrawFn) -> Request:
    prompt = tuple(draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=CONTEXT - 1)))
    stop = tuple(draw(st.sets(st.integers(0, VOCAB - 1), max_size=4)))
    most = draw(st.integers(0, CONTEXT - len(prompt)))
    return Request("", prompt, SamplingParams(stop_token_ids=stop), draw(st.integers(0, 9)), most, eos_ids=(3, 4, 5))


@settings(max_examples=200, deadline=None)
@given(
    waves=st.lists(st.tuples(st.lists(requests(), max_size=4), st.integers(1, 9), st.integers(0, 7)), min_size=1, max_size=5),
    page=st.integers(1, 5), slots=st.integers(1, 5), chunk=st.integers(1, 24), spare=st.integers(0, 12), windowed=st.booleans(),
)
def test_every_request_gets_its_own_tokens(waves, page, slots, chunk, spare, windowed):
    """Each wave: requests arrive, some steps are made, and one of those that run is cancelled."""
    groups = (FULL, WINDOW) if windowed else (FULL,)
    pages = (-(-CONTEXT // page) + spare, -(-(7 + chunk) // page) + 2 + spare)[: len(groups)]
    layout = CacheLayout(groups, page, pages, slots)
    core = EngineCore(Scheduler(layout, chunk_tokens=chunk), FakeRunner(layout), depth=2)
    known: dict[str, Request] = {}
    outputs: dict[str, list[int]] = {}
    ends: dict[str, str] = {}

    def step() -> None:
        for event in core.step():
            assert event.request not in ends, "news after the end"
            outputs[event.request].extend(event.tokens)
            if event.finish_reason:
                ends[event.request] = event.finish_reason

    for arriving, steps, victim in waves:
        for request in arriving:
            named = Request(f"r{len(known)}", *request_fields(request))
            known[named.id], outputs[named.id] = named, []
            core.add(named)
        for _ in range(steps):
            step()
        alive = [name for name in known if name not in ends]
        if victim < len(alive):
            core.cancel(alive[victim])
    while core.has_work:
        step()
    for name, request in known.items():
        expected = expected_output(request)
        assert outputs[name] == (expected[: len(outputs[name])] if ends[name] == "cancelled" else expected)
    assert core.stats().kv_pages_used == core.stats().slots_used == 0


def request_fields(request: Request) -> tuple[object, ...]:
    return (request.prompt, request.params, request.seed, request.max_tokens, request.eos_ids)


# Tiny models

PROMPTS = ["the hello world", "and in the other", "st", "world " * 20, "of it", "hello " * 9]
STOP = "e"
PARAMS = [
    SamplingParams(temperature=0, max_tokens=90, ignore_eos=True),
    SamplingParams(seed=1, max_tokens=90, ignore_eos=True, logprobs=2, prompt_logprobs=1),
    SamplingParams(seed=2, max_tokens=80, top_k=20, top_p=0.95, stop=STOP, min_tokens=5),
    SamplingParams(seed=3, max_tokens=85, ignore_eos=True, min_p=0.05, presence_penalty=0.5, repetition_penalty=1.2, n=2),
    SamplingParams(seed=4, max_tokens=0, prompt_logprobs=0),
    SamplingParams(seed=5, max_tokens=70, stop_token_ids=tuple(range(40, 60)), logit_bias={45: 3.0}),
]


def complete(checkpoint: Path, loop: str, cache_bytes: int) -> tuple[list[Completion], EngineStats]:
    """All prompts together in a cache that cannot hold them all."""
    with LLM(checkpoint, device="cpu", dtype="float64", context=256, max_seqs=5, chunk_tokens=16, page_tokens=4,
             cache_bytes=cache_bytes, loop=loop) as llm:
        return llm.generate(PROMPTS, PARAMS), llm._core.stats()


def rounded(entries: tuple[TokenLogprob | None, ...] | None) -> list[object]:
    """Float64 sums depend on the company in their last bits, which may be rounded away here."""
    return [
        e and (e.token, round(e.logprob, 9), [(token, round(logprob, 9)) for token, logprob in e.top]) for e in entries or ()
    ]


@pytest.mark.parametrize(("model_type", "cache_bytes"), [("qwen3_5_text", 190_000), ("llama", 540_000)])
def test_tiny_models_yield_the_same_completions(model_type: str, cache_bytes: int, tmp_path: Path):
    checkpoint = make_tiny_checkpoint(tmp_path, model_type, seed=5)
    plain, _ = complete(checkpoint, "plain", cache_bytes)
    overlapped, stats = complete(checkpoint, "overlapped", cache_bytes)
    assert [replace(c, logprobs=None, prompt_logprobs=None) for c in overlapped] == [
        replace(c, logprobs=None, prompt_logprobs=None) for c in plain
    ]
    for ours, theirs in zip(overlapped, plain, strict=True):
        assert rounded(ours.logprobs) == rounded(theirs.logprobs)
        assert rounded(ours.prompt_logprobs) == rounded(theirs.prompt_logprobs)
    assert any(c.stop_reason == STOP for c in plain)
    assert stats.preemptions_total > 0 and stats.kv_pages_used == stats.slots_used == 0
