"""Decode steps as graphs: the tokens are those of the eager step."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.scripted_drafter import ScriptedDrafter
from tests.support.stub_decoder import SPEC, VOCAB, StubDecoder
from torch import Tensor

from headrace.cache.layout import CacheLayout, cache_groups
from headrace.engine.core import EngineCore
from headrace.layers.batch import Batch, Pools
from headrace.plan.dtypes import Dtypes
from headrace.plan.graph_rows import bucket_of, row_buckets
from headrace.runner.runner import Runner
from headrace.scheduler.scheduler import Scheduler
from headrace.types import Request, SamplingParams

CONTEXT, SLOTS = 200, 11


def requests(count: int) -> list[Request]:
    """Greedy, drawn by the kernels, and drawn with the host's help."""
    rng = random.Random(4)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0}, {"top_k": 7, "top_p": 0.9}, {}, {"top_p": 0.8}, {"presence_penalty": 0.5, "logprobs": 2},
        {"min_tokens": 6, "temperature": 0},
    ]
    made = []
    for number in range(count):
        prompt = tuple(rng.randrange(VOCAB) for _ in range(rng.choice((1, 3, 16, 40))))
        params = SamplingParams(**kinds[number % len(kinds)])
        made.append(Request(f"r{number}", prompt, params, number, rng.randint(1, 60), eos_ids=(11, 12)))
    return made


def engine(
    device: str, *, padding: bool, depth: int, pages: int, decoder: Any = None, required: bool = False, drafter: Any = None
) -> EngineCore:
    layout = CacheLayout(cache_groups(SPEC), 4, (pages,), SLOTS, padding or bool(drafter), drafter.most if drafter else 0)
    decoder = decoder or StubDecoder()
    runner = Runner(SPEC, decoder, layout, Dtypes("float32", "float32", "float32"), torch.device(device), context=CONTEXT,
                    chunk_tokens=32, graphs=padding, graphs_required=required)
    return EngineCore(Scheduler(layout, chunk_tokens=32, drafter=drafter), runner, depth=depth)


def tokens_of(core: EngineCore, waiting: list[Request], together: int = 1) -> dict[str, list[int]]:
    """Requests arrive one by one, so that steps have every number of rows; or so many together when all before are answered."""
    outputs: dict[str, list[int]] = {request.id: [] for request in waiting}
    while waiting or core.has_work:
        if waiting and (together == 1 or not core.has_work):
            for request in waiting[:together]:
                core.add(request)
            del waiting[:together]
        for event in core.step():
            assert event.finish_reason != "error", event.error
            outputs[event.request].extend(event.tokens)
    return outputs


def test_the_loops_agree_on_a_cpu():
    plain = tokens_of(engine("cpu", padding=False, depth=1, pages=120), requests(30))
    assert sum(map(len, plain.values())) > 300 and len({tuple(t) for t in plain.values()}) > 20
    assert tokens_of(engine("cpu", padding=False, depth=2, pages=120), requests(30)) == plain


def scripted(answers: dict[str, list[int]], most: int = 7) -> ScriptedDrafter:
    return ScriptedDrafter(answers, most, VOCAB, chances=(0.5, 0.9, 1.0))


@pytest.mark.parametrize("depth", [1, 2])
def test_drafts_change_no_token_on_a_cpu(depth: int):
    plain = tokens_of(engine("cpu", padding=False, depth=1, pages=120), requests(30))
    assert tokens_of(engine("cpu", padding=False, depth=depth, pages=120, drafter=scripted(plain)), requests(30)) == plain


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [1, 2])
def test_graphs_of_drafts_give_the_tokens_without_drafts(depth: int):
    for made, together in ((lambda: requests(30), 1), (short_requests, SLOTS)):
        plain = tokens_of(engine("cpu", padding=False, depth=1, pages=120), made(), together)
        eager = engine("cuda", padding=False, depth=depth, pages=120, drafter=scripted(plain))
        assert tokens_of(eager, made(), together) == plain
        core = engine("cuda", padding=True, depth=depth, pages=120, drafter=scripted(plain), required=True)
        replayed, decoding = count_replays(core), count_decoding(core)
        assert tokens_of(core, made(), together) == plain
        assert replayed == decoding
    assert len(replayed) > 40 and max(replayed) == SLOTS


def short_requests() -> list[Request]:
    """Whose prompts are computed in one step of all."""
    return [replace(request, prompt=request.prompt[:2]) for request in requests(3 * SLOTS)]


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [1, 2])
def test_graphs_give_the_eager_tokens(depth: int):
    expected = tokens_of(engine("cpu", padding=False, depth=1, pages=120), requests(30))
    assert tokens_of(engine("cuda", padding=False, depth=depth, pages=120), requests(30)) == expected
    core = engine("cuda", padding=True, depth=depth, pages=120)
    replayed = count_replays(core)
    assert tokens_of(core, requests(30)) == expected
    assert len(replayed) > 50 and max(replayed) == SLOTS


@pytest.mark.gpu
@pytest.mark.parametrize("drafts", [0, 7])
def test_a_replayed_step_never_waits_for_the_device(drafts: int):
    answers = {request.id: [1] * 20 for request in requests(6)}
    core = engine("cuda", padding=True, depth=2, pages=400, drafter=scripted(answers, drafts) if drafts else None)
    for request in requests(6):
        core.add(replace(request, prompt=request.prompt[:3], max_tokens=20))
    core.step()
    runner: Any = core._runner
    core.step()
    plan = core._scheduler.plan()
    replayed = count_replays(core)
    assert plan is not None and any(row.drafts for row in plan.rows) == (drafts > 0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        runner.launch(plan)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert replayed == [6]


class WaitingDecoder(StubDecoder):
    """Looks at a number on the host."""

    def __call__(self, batch: Batch, pools: Pools, wanted: Tensor | None = None) -> Tensor:
        batch.tokens.sum().item()
        return super().__call__(batch, pools, wanted)


@pytest.mark.gpu
def test_what_cannot_be_captured_runs_eagerly_unless_graphs_are_required():
    expected = tokens_of(engine("cpu", padding=False, depth=1, pages=120), requests(12))
    core = engine("cuda", padding=True, depth=2, pages=120, decoder=WaitingDecoder())
    assert core._runner._graphs is None  # type: ignore[attr-defined]
    assert tokens_of(core, requests(12)) == expected
    with pytest.raises(RuntimeError, match="captur"):
        engine("cuda", padding=True, depth=2, pages=120, decoder=WaitingDecoder(), required=True)


def count_replays(core: EngineCore) -> list[int]:
    """The rows of every step that a graph runs from now on."""
    runner: Any = core._runner
    graphs = runner._drafting.graphs if runner._drafting else runner._graphs
    found, counts = graphs.graph_for, []

    def counting(rows: Any, **kind: bool) -> Any:
        graph = found(rows, **kind)
        if graph is not None:
            counts.append(len(rows))
        return graph

    graphs.graph_for = counting
    return counts


def count_decoding(core: EngineCore) -> list[int]:
    """The rows of every step that is planned from now on and has none but decoding rows."""
    scheduler: Any = core._scheduler
    plan, counts = scheduler.plan, []

    def counting() -> Any:
        made = plan()
        if made is not None and all(row.samples and not row.tokens for row in made.rows):
            counts.append(len(made.rows))
        return made

    scheduler.plan = counting
    return counts


def test_buckets_rise_to_the_most_rows():
    assert row_buckets(1) == (1,)
    assert row_buckets(11) == (1, 2, 4, 8, 11)
    assert row_buckets(64) == (1, 2, 4, 8, 16, 24, 32, 48, 64)
    assert row_buckets(200)[-5:] == (96, 128, 160, 192, 200)
    assert [bucket_of(rows, (1, 2, 4, 8)) for rows in (1, 3, 8, 9)] == [1, 4, 8, None]
