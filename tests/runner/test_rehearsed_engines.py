"""What an engine launches once its start has compiled ahead is compiled: its graphs' first runs, and steps of any rows where
nothing is captured, with every drafter. Told on cards that are not there.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this system")

from tests.runner.test_rehearsed_forms import CARDS, bare_decoder
from tests.support.pretended_card import META, Launch, pretended

from headrace import random_weights
from headrace.config import EngineConfig
from headrace.engine.device_drafters import drafter_maker
from headrace.hardware import Hardware
from headrace.kernels.card import Card
from headrace.kernels.gated_delta_verify import MAX_TOKENS
from headrace.layers.arena import Arena
from headrace.layers.linear import Linear
from headrace.plan import shapes
from headrace.plan.auto_drafter import resolve_drafter
from headrace.plan.budget import make_budget
from headrace.plan.dtypes import resolve_dtypes
from headrace.plan.graph_rows import draft_widths, prompt_shapes, row_buckets
from headrace.plan.named import lab_model_path
from headrace.plan.shapes import declared_model
from headrace.plan.speculation import drafter_extras
from headrace.runner import pools, rehearsal, runner
from headrace.runner.draft_batch import short_first
from headrace.runner.draft_graphs import DraftCaptured, DraftGraph
from headrace.runner.graphs import Captured, DecodeGraph, StepGraph
from headrace.runner.prompt_graphs import PromptGraph
from headrace.runner.proposal_graphs import ProposalGraph
from headrace.runner.runner import Runner
from headrace.types import Row

LAB = json.loads((lab_model_path() / "config.json").read_text()) | {"tie_word_embeddings": False}


@dataclass(frozen=True)
class Setting:
    """An engine's. drafts, verified: as many as the drafter's own if None."""

    card: Card
    method: str
    name: str
    slots: int = 16
    chunk_tokens: int = 2048
    drafts: int | None = None
    verified: int | None = None
    dtype: str = "bfloat16"
    kv: str = "auto"
    state: str = "auto"

    def config(self) -> EngineConfig:
        return EngineConfig(
            device="cuda", random_weights=self.name, speculate=self.method, max_seqs=self.slots, context=4096,
            chunk_tokens=self.chunk_tokens, cache_bytes=8 * 10**9, draft_tokens=self.drafts, verify_tokens=self.verified,
            dtype=self.dtype, kv_dtype=self.kv, state_dtype=self.state,
        )


def drawn(seed: int) -> Setting:
    """One of those that users may ask for."""
    rng = random.Random(seed)
    method, drafts = rng.choice(("lookup", "mtp")), rng.randint(1, 15)
    return Setting(
        rng.choice(CARDS), method, rng.choice(("lab:bf16", "short:bf16", "short:w4a16-head8", "short:w8a8")),
        slots=rng.choice((rng.randint(1, 8), rng.randint(9, 64))), chunk_tokens=rng.randint(100, 2048), drafts=drafts,
        verified=rng.randint(drafts, 15) if method == "mtp" and rng.random() < 0.5 else None,
        dtype=rng.choice(("bfloat16", "float16")), kv=rng.choice(("auto", "int8")), state=rng.choice(("auto", "auto", "fp32")),
    )


@pytest.fixture
def on_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has memory, and there are no graphs."""

    def nowhere(spec: object, layout: object, dtypes: object, device: object) -> object:
        return pools._pools(spec, layout, dtypes, Arena(None, META))  # type: ignore[arg-type]

    for module in (rehearsal, runner):
        monkeypatch.setattr(module, "allocate_pools", nowhere)
    monkeypatch.setattr(shapes, "SHAPES", {
        **shapes.SHAPES, "short": {**shapes.SHAPES["qwen3.8-27b"], "num_hidden_layers": 8}, "lab": LAB,
    })
    monkeypatch.setattr(random_weights, "make_weights", lambda module: None)
    monkeypatch.setattr(Linear, "prepare", lambda self: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(StepGraph, "__init__", _without_graph)


def _without_graph(self: StepGraph, compute: object, where: torch.Tensor, sampled: torch.Tensor, over: Captured) -> None:
    self._compute, self._where, self._sampled, self._over = compute, where, sampled, over  # type: ignore[assignment]
    self._drawing = object()  # type: ignore[assignment]


def started(setting: Setting) -> Runner:
    """As `engine.build` goes about it."""
    config, card = setting.config(), setting.card
    hardware = Hardware("cuda", "a card", 150 * 10**9, 149 * 10**9, capability=card.capability, processors=card.processors)
    model = declared_model(setting.name)
    dtypes = resolve_dtypes(config, hardware, model.checkpoint.dtype)
    memory = resolve_drafter(model, config, hardware, dtypes).memory
    model = replace(model, spec=replace(model.spec, drafter=memory.cache))
    extras = drafter_extras(model, config, dtypes, memory)
    budget = make_budget(model.spec, model.weight_map, hardware, config, dtypes, memory.drafts, extras)
    decoder = bare_decoder(model, getattr(torch, dtypes.compute))
    sizes = {"context": budget.context, "chunk_tokens": budget.chunk_tokens}
    make_drafter = drafter_maker(model, config, budget, dtypes, memory, decoder)
    rehearsal.rehearse(model.spec, decoder, budget.layout, dtypes, META, **sizes, draws=memory.draws)
    return Runner(model.spec, decoder, budget.layout, dtypes, META, **sizes, make_drafter=make_drafter)


def captured(engine: Runner, setting: Setting) -> Iterator[DecodeGraph | PromptGraph | DraftGraph | ProposalGraph]:
    """Graphs of every size, each to be warmed up."""
    sizes, drafting = row_buckets(setting.slots), engine._drafting
    if drafting is None:
        assert engine._packer is not None
        over = Captured.over(engine._decoder, engine._pools, engine._tables, engine._sampler)
        shapes = prompt_shapes(setting.slots, setting.chunk_tokens, 4096)
        yield from (PromptGraph(shape, engine._packer.upload, over) for shape in shapes)
        yield from (DecodeGraph(size, over) for size in sizes)
        return
    decoder, proposer = engine._decoder, drafting.proposer
    assert proposer.drafter is not None
    with_drafts = DraftCaptured(
        decoder, engine._pools, engine._tables, drafting.slots, engine._sampler, drafting._verifier_of(decoder.scores),
        drafting._verifier_of(decoder.logits), proposer, None,
    )
    for size in sizes:
        for width in (1, *draft_widths(engine.layout.drafts)):
            yield DraftGraph(size, width, 1 + engine.layout.drafts, with_drafts)
        for depth in proposer.drafter.depths:
            yield ProposalGraph(size, depth, proposer, drafting.slots, engine._tables)


def run(graph: DecodeGraph | PromptGraph | DraftGraph | ProposalGraph) -> None:
    if isinstance(graph, DecodeGraph | PromptGraph):
        graph.graph._draw(graph.graph._compute())
    else:
        graph.warm_up()


def draw_with_help(engine: Runner) -> None:
    """As of rows with a wide top_k and top_p."""
    logits, numbers = torch.empty(3, engine._sampler.vocab_size, device=META), torch.empty(3, dtype=torch.int64, device=META)
    engine._sampler.tokens_of(logits, (0, 1, 2), numbers, numbers)


def drafted_steps(setting: Setting, drafts: int, count: int) -> Iterator[tuple[Row, ...]]:
    """Rows that decode, with drafts or without, few or many of each, and some with prompts among them."""
    rng, slots = random.Random(2), setting.slots
    for step in range(count):
        most = rng.choice((0, rng.randint(0, drafts), drafts))
        rows = [Row(n, n, 0, asked=rng.choice((0, most, rng.randint(0, most)))) for n in range(rng.randint(1, slots))]
        if step % 3 != 1:
            left = setting.chunk_tokens - min(sum(1 + row.asked for row in rows[:-1]), setting.chunk_tokens // 2)
            prompt = min(left, rng.choice((rng.randint(2, MAX_TOKENS), rng.randint(2, 300), left)))
            rows[-1] = Row(len(rows), len(rows) - 1, 0, (0,) * prompt, samples=rng.random() < 0.5)
        yield short_first(rows)


@pytest.mark.usefixtures("on_meta")
@pytest.mark.parametrize("setting", [
    *(Setting(CARDS[0], method, "short:w4a16-head8") for method in ("off", "lookup", "mtp")),
    *(Setting(card, "dflash", "qwen3.8-27b:w4a16-head8") for card in CARDS[:2]),  # which reads layers all over
    Setting(CARDS[2], "mtp", "short:w4a16-head8"),
    Setting(CARDS[0], "lookup", "lab:bf16", slots=64, drafts=15),
    *(drawn(seed) for seed in range(3)),
], ids=lambda setting: f"sm_{setting.card.capability}-{setting.method}-{setting.name}-{setting.slots}x{setting.drafts}")
def test_an_engine_compiles_nothing_after_its_start(setting: Setting) -> None:
    with pretended(setting.card) as launches, torch.inference_mode():
        engine = started(setting)
        known, late = set(launches), dict[Launch, object]()
        assert len(known) > 25

        def note(step: object) -> None:
            late.update(dict.fromkeys(launches - known - late.keys(), step))

        for graph in captured(engine, setting):
            run(graph)
            note(graph)
        for rows in range(1, 65):  # of a prompt that is scored
            engine._decoder.logits(engine._decoder.embedding.weight.new_empty(rows, engine._decoder.spec.hidden))
            note(f"{rows} rows of scores")
        if engine._drafting is not None:
            for step in drafted_steps(setting, engine.layout.drafts, 24):
                engine._drafting.run(step)
                note([(len(row.tokens), row.asked) for row in step])
    assert not late, "\n".join(f"{launch}: {step}" for launch, step in late.items())
