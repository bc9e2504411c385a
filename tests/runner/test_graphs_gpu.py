"""Captured steps of the real decoder against eager ones, on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.answered import answered
from torch import Tensor

from headrace.cache.layout import CacheLayout, cache_groups
from headrace.engine.core import EngineCore
from headrace.models import qwen3_5
from headrace.models.decoder import build_decoder
from headrace.plan.dtypes import Dtypes
from headrace.random_weights import make_weights
from headrace.runner import draft_graphs
from headrace.runner.draft_batch import short_first
from headrace.runner.prompt_batch import singles_first
from headrace.runner.runner import Runner
from headrace.scheduler.scheduler import Scheduler
from headrace.types import PageUpdate, Request, Row, SamplingParams

pytestmark = pytest.mark.gpu

CONFIG = {
    "model_type": "qwen3_5_text", "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 128, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "max_position_embeddings": 4096, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}
CONTEXT, SLOTS, PAGE_TOKENS = 512, 12, 16
PAGES = SLOTS * CONTEXT // PAGE_TOKENS


def make_runner(dtype: str, *, padding: bool, drafts: int = 0) -> Runner:
    spec, device = qwen3_5.spec(CONFIG), torch.device("cuda")
    decoder = build_decoder(spec, dtype=getattr(torch, dtype), device=device)
    make_weights(decoder)
    decoder.prepare()
    dtypes: Any = Dtypes(dtype, dtype, "float32" if dtype == "float32" else "float16")  # type: ignore[arg-type]
    layout = CacheLayout(cache_groups(spec), PAGE_TOKENS, (PAGES,), SLOTS, padding, drafts)
    return Runner(spec, decoder, layout, dtypes, device, context=CONTEXT, chunk_tokens=128, graphs_required=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_replay_has_the_bits_of_the_eager_step(dtype: str) -> None:
    runner: Any = make_runner(dtype, padding=True)
    runner.fill_cache(seed=1)
    runner._sampler.next_tokens.copy_(torch.arange(SLOTS + 1) * 7)
    width = CONTEXT // PAGE_TOKENS
    for count in (1, 3, 8, 12):
        # Starts at a page's first and last token, at zero, and near the end of the context.
        starts = [0, 15, 16, 300, CONTEXT - 1, 1, 77, 31, 32, 256, 255, 511][:count]
        slots = [(5 * n + 3) % SLOTS for n in range(count)]
        rows = tuple(
            Row(n, slot, start, (), (), (PageUpdate(0, start // PAGE_TOKENS, (slot * width + start // PAGE_TOKENS,)),))
            for n, (slot, start) in enumerate(zip(slots, starts, strict=True))
        )
        eager, after_eager = run_step(runner, rows, count, replay=False)
        replayed, after_replay = run_step(runner, rows, count, replay=True)
        assert torch.isfinite(eager).all() and float(eager.std()) > 0.1
        assert torch.equal(replayed, eager)
        assert all(torch.equal(a, b) for a, b in zip(after_replay, after_eager, strict=True))


@torch.inference_mode()
def run_step(runner: Any, rows: tuple[Row, ...], count: int, *, replay: bool) -> tuple[Tensor, list[Tensor]]:
    """Logits of the rows, and what sequences own of the pools afterwards; the pools are put back."""
    before = [pool.clone() for pool in own_pools(runner)]
    graph = runner._graphs.graph_for(rows)
    graph._write(rows)
    graph._upload.send()
    if replay:
        graph.graph.step.replay()
    logits = graph.graph.logits if replay else graph._compute()
    found = logits[:count].clone(), [pool.clone() for pool in own_pools(runner)]
    for pool, was in zip(own_pools(runner), before, strict=True):
        pool.copy_(was)
    return found


# Tokens of each row, 0 for one that the device has drawn, where the row starts, and whether it draws.
MIXED: list[list[tuple[int, int, bool]]] = [
    [(65, 0, True)], [(7, 15, True)], [(0, 40, True), (100, 0, False), (0, 300, True)], [(1, 47, True)],
    [(3, 0, True), (0, 9, True), (17, 130, True), (0, 255, True), (2, 31, False)], [(120, 391, True), (0, 511, True)],
    [*((0, 30 * n, True) for n in range(9)), (40, 16, True)], [(33, 77, False)],
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_replay_with_prompts_has_the_bits_of_the_same_step_and_agrees_with_the_eager_one(dtype: str) -> None:
    runner: Any = make_runner(dtype, padding=True)
    runner.fill_cache(seed=1)
    runner._sampler.next_tokens.copy_(torch.arange(SLOTS + 1) * 7)
    generator = torch.Generator().manual_seed(2)
    for mixed in MIXED:
        rows = singles_first(given_rows(mixed, generator))
        graph = runner._prompts.graph_for(rows)
        ends = [n for n, row in enumerate(rows) if row.samples]
        direct, after_direct = run_prompts(runner, graph, rows, replay=False)
        replayed, after_replay = run_prompts(runner, graph, rows, replay=True)
        assert torch.isfinite(direct).all() and len(direct) >= len(ends)
        assert torch.equal(replayed, direct)
        assert all(torch.equal(a, b) for a, b in zip(after_replay, after_direct, strict=True))
        eager, after_eager = run_eagerly(runner, rows)
        for found, expected in ((replayed[: len(ends)], eager), *zip(after_replay, after_eager, strict=True)):
            if len(expected):
                rms = float(expected.double().square().mean().sqrt())
                error = float((found.double() - expected.double()).abs().max())
                assert error <= 3e-2 * max(rms, 0.1 * float(expected.abs().max()))


@torch.inference_mode()
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_captured_pass_of_an_engine_with_drafts_has_the_bits_of_the_same_pass(dtype: str) -> None:
    """And agrees with the one that is launched: but for a step of the type, which is much of a hidden state in bfloat16."""
    runner: Any = make_runner(dtype, padding=True, drafts=7)
    runner.fill_cache(seed=1)
    drafting, decoder, pools = runner._drafting, runner._decoder, own_pools(runner)
    runner._sampler.next_tokens.copy_(torch.arange(SLOTS + 1) * 7)
    drafting.slots.ends[:SLOTS] = CONTEXT
    generator, was = torch.Generator().manual_seed(2), [pool.clone() for pool in pools]

    def outcome(hidden: Tensor) -> list[Tensor]:
        found = [hidden.clone(), *(pool.clone() for pool in pools)]
        for pool, before in zip(pools, was, strict=True):
            pool.copy_(before)
        return found

    for mixed in MIXED:
        rows = short_first(given_rows(mixed, generator))
        for row in rows:
            drafting.slots.positions[row.slot] = row.start
        batch, forward = drafting._packer.pack(rows, deferred=False).batch, drafting.forwards.graph_for(rows)
        replayed = outcome(forward.run(batch)[0])
        direct = outcome(forward._compute(decoder)[0][: len(batch.tokens)])
        assert torch.isfinite(direct[0]).all() and all(torch.equal(a, b) for a, b in zip(replayed, direct, strict=True))
        for found, expected in zip(replayed, outcome(decoder.tapped(batch, runner._pools, ())[0]), strict=True):
            rms, size = float(expected.double().square().mean().sqrt()), expected.double().abs()
            beyond = (found.double() - expected.double()).abs() - torch.finfo(expected.dtype).eps * size
            assert float(beyond.max()) <= 3e-2 * max(rms, 0.1 * float(size.max()))


def given_rows(mixed: list[tuple[int, int, bool]], generator: torch.Generator) -> tuple[Row, ...]:
    width = CONTEXT // PAGE_TOKENS
    rows = []
    for n, (count, start, samples) in enumerate(mixed):
        slot, tokens = (5 * n + 3) % SLOTS, tuple(torch.randint(0, 1000, (count,), generator=generator).tolist())
        pages = tuple(range(slot * width, slot * width + -(-(start + max(count, 1)) // PAGE_TOKENS)))
        rows.append(Row(n, slot, start, tokens, (), (PageUpdate(0, 0, pages),), samples))
    return tuple(rows)


@torch.inference_mode()
def run_prompts(runner: Any, graph: Any, rows: tuple[Row, ...], *, replay: bool) -> tuple[Tensor, list[Tensor]]:
    """Logits of the rows that sample, and what sequences own of the pools afterwards; the pools are put back."""
    before = [pool.clone() for pool in own_pools(runner)]
    inputs, at = graph.write(rows), runner._packer.upload.tensor
    runner._tables.apply(at(inputs.updated), at(inputs.pages))
    if replay:
        graph.graph.step.replay()
    logits = graph.graph.logits if replay else graph.compute()
    found = logits.clone(), [pool.clone() for pool in own_pools(runner)]
    for pool, was in zip(own_pools(runner), before, strict=True):
        pool.copy_(was)
    return found


@torch.inference_mode()
def run_eagerly(runner: Any, rows: tuple[Row, ...]) -> tuple[Tensor, list[Tensor]]:
    before = [pool.clone() for pool in own_pools(runner)]
    batch, sampled = runner._packer.pack(rows, runner._sampler.next_tokens)
    ends = batch.slots[:0]
    if sampled is not None:
        ends = torch.arange(len(batch.tokens), device="cuda") if sampled.last is None else sampled.last
    hidden = runner._decoder(batch, runner._pools, ends)
    logits = runner._decoder.scores(hidden) if len(ends) else hidden.new_empty(0, 1000)
    found = logits.clone(), [pool.clone() for pool in own_pools(runner)]
    for pool, was in zip(own_pools(runner), before, strict=True):
        pool.copy_(was)
    return found


def own_pools(runner: Any) -> list[Tensor]:
    """All pools without their padding."""
    pools = runner._pools
    kinds = (pools.keys, pools.values, pools.states, pools.conv_tails)
    return [pool[:-1] for kind in kinds for pool in kind if pool is not None]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_replay_of_drafts_has_the_bits_of_the_eager_step(dtype: str, together: bool) -> None:
    """Rows with 0 to 7 drafts, and 0 to 7 of an earlier step pending."""
    runner: Any = make_runner(dtype, padding=True, drafts=7)
    runner.fill_cache(seed=1)
    drafting, width = runner._drafting, CONTEXT // PAGE_TOKENS
    runner._sampler.next_tokens.copy_(torch.arange(SLOTS + 1) * 7)
    drafting.slots.positions[:SLOTS] = torch.tensor([0, 15, 16, 300, 490, 1, 77, 31, 32, 256, 255, 503], device="cuda")
    drafting.slots.ends[:SLOTS] = CONTEXT - 1
    tables = runner._tables.entries[0]
    tables[:SLOTS, :width] = torch.arange(SLOTS * width, device="cuda").view(SLOTS, width)
    generator = torch.Generator().manual_seed(5)
    for count in (12, 1, 3, 8):
        slots = [(5 * n + 3) % SLOTS for n in range(count)]
        lengths = torch.randint(0, 8, (count,), generator=generator).tolist()
        pairs = zip(slots, lengths, strict=True)
        rows = tuple(Row(n, slot, 0, (), tuple(range(n, n + k))) for n, (slot, k) in enumerate(pairs))
        graph = drafting.graphs.graph_for(rows, deferred=True)
        eager, after_eager = run_drafts(runner, graph, rows, together, replay=False)
        replayed, after_replay = run_drafts(runner, graph, rows, together, replay=True)
        assert torch.isfinite(eager[0].float()).all() and float(eager[0].float().std()) > 0.1
        assert torch.equal(replayed[0], eager[0]) and replayed[1] == eager[1]
        assert all(torch.equal(a, b) for a, b in zip(after_replay, after_eager, strict=True))
        for tensor, after in zip(kept_of(runner), after_replay, strict=True):
            tensor[: len(after)].copy_(after)
        pending = [int(torch.randint(0, k + 1, (1,), generator=generator)) for k in lengths]
        runner._pools.pending[torch.tensor(slots, device="cuda")] = torch.tensor(pending, dtype=torch.int32, device="cuda")


@torch.inference_mode()
def run_drafts(
    runner: Any, graph: Any, rows: tuple[Row, ...], together: bool, *, replay: bool
) -> tuple[tuple[Tensor, list[Any]], list[Tensor]]:
    """(hidden states, results) of the rows, and what slots and pages are afterwards; all is put back."""
    count, kept, kind = len(rows), kept_of(runner), draft_graphs._TOGETHER if together else draft_graphs._IN_TURN
    before = [tensor.clone() for tensor in kept]
    graph._write(rows)
    graph._upload.send()
    if replay:
        graph._run(draft_graphs._STEP)
        graph._run(kind)
        (_, hidden, *_), drawn = graph._made[draft_graphs._STEP], graph._made[kind]
    else:
        runs, hidden, *_ = graph._compute()
        drawn = graph._finish(kind, runs, hidden)
    begins = graph._begins if together else tuple(range(graph.size))
    results = list(replace(drawn, emitted=drawn.emitted[:count], begins=begins[:count]).results())
    found = hidden[: (*graph._begins, graph.tokens)[count]].clone(), results
    after = [tensor[:-1].clone() for tensor in kept]
    for tensor, was in zip(kept, before, strict=True):
        tensor.copy_(was)
    return found, after


def kept_of(runner: Any) -> list[Tensor]:
    """All that is kept by page or slot; the last of each is padding."""
    pools, slots = runner._pools, runner._drafting.slots
    kinds = (pools.keys, pools.values, pools.states, pools.conv_tails)
    rings = [x for ring in pools.rings if ring is not None for x in (ring.keys, ring.deltas, ring.decays, ring.inputs)]
    return [*(pool for kind in kinds for pool in kind if pool is not None), *rings, slots.pending, slots.parity,
            slots.positions, slots.frozen, slots.next_tokens, slots.integers]


@pytest.mark.parametrize("depth", [1, 2])
def test_the_engines_tokens_are_those_without_graphs(depth: int) -> None:
    """float32, where the number of rows that a product has hardly shows; a difference would be a near tie."""
    expected = generate(make_runner("float32", padding=False), 1)
    runner = make_runner("float32", padding=True)
    prompts = count_prompts(runner)
    found = generate(runner, depth)
    assert len(prompts) > 10
    same = sum(found[name] == tokens for name, tokens in expected.items())
    assert len(expected) == 40 and same >= 39, f"{same} of {len(expected)} are the same"


def count_prompts(runner: Any) -> list[int]:
    """The rows of every step with prompts that a graph runs from now on."""
    found, counts = runner._prompts.graph_for, []

    def counting(rows: tuple[Row, ...]) -> Any:
        graph = found(rows)
        if graph is not None:
            counts.append(len(rows))
        return graph

    runner._prompts.graph_for = counting
    return counts


def generate(runner: Runner, depth: int) -> dict[str, list[int]]:
    core = EngineCore(Scheduler(runner.layout, chunk_tokens=128), runner, depth=depth)
    generator = torch.Generator().manual_seed(3)
    requests = []
    for number in range(40):
        length = int(torch.randint(1, 200, (1,), generator=generator))
        prompt = tuple(torch.randint(0, 1000, (length,), generator=generator).tolist())
        params = SamplingParams(temperature=0.0 if number % 2 else 1.0, top_k=20 if number % 4 else 0, top_p=0.95)
        requests.append(Request(f"r{number}", prompt, params, number, 5 + number, eos_ids=(1, 2, 3)))
    outputs = answered(core, requests)
    core.close()
    return outputs
