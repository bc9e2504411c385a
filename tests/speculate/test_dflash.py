"""DFlash and DFlash2 drafters against the formula of their published layout, however their context came to them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.compressed import Scheme, compress
from tests.support.drafter_formulas import dflash_block, selector_walk
from tests.support.packing import CPU
from tests.support.tiny_dflash import dflash_config, dflash_tensors, write_dflash
from torch import Tensor

from headrace.cache.layout import CacheLayout, cache_groups
from headrace.kernels.angles import angles
from headrace.kernels.block_attention import KeyRing
from headrace.layers.batch import Batch, Pools
from headrace.layers.rope import frequencies
from headrace.loader import load_weights
from headrace.models import qwen3
from headrace.models.decoder import Decoder, build_decoder
from headrace.plan.dflash import PUBLISHED, DFlashSpec, dflash_cache, dflash_spec, dflash_weights, drafter_model, open_dflash
from headrace.plan.dtypes import Dtypes
from headrace.plan.published import published_model
from headrace.speculate.dflash import DFlashDrafter
from headrace.speculate.dflash_model import DFlashModel, build_dflash
from headrace.speculate.drafter import Asked, Seen, Surroundings
from headrace.types import Admission, Request, SamplingParams

VOCABULARY, SLOTS, CHECKPOINTS = 200, 5, 2
TARGET: dict[str, Any] = {
    "model_type": "qwen3", "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "head_dim": 8,
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "dflash2": dflash_config(VOCABULARY),
    "dflash": dflash_config(VOCABULARY, first_form=True),
    "large-block": dflash_config(VOCABULARY, num_key_value_heads=1, inner={"block_size": 8, "conv_kernel_size": 3}),
    "full": dflash_config(VOCABULARY, layer_types=["full_attention"] * 2, inner={"target_layer_ids": [0, 1, 3]}),
}


def greedy(scores: Tensor, place: int, candidates: Tensor | None = None) -> Tensor:
    best = scores.argmax(1)
    return best if candidates is None else candidates.gather(1, best[:, None])[:, 0]


def filled(spec: DFlashSpec, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device = CPU) -> DFlashModel:
    model = build_dflash(spec, dtype=dtype, device=device)
    parameters, given = dict(model.named_parameters()), 0
    for weight in dflash_weights(spec, tensors.keys()).weights:
        parameters[weight.target].data[weight.offset : weight.offset + weight.shape[0]] = tensors[weight.source]
        given += tensors[weight.source].numel()
    assert given == sum(parameter.numel() for parameter in parameters.values())
    model.prepare()
    return model


def target(dtype: torch.dtype, device: torch.device) -> tuple[Decoder, Tensor, Tensor]:
    """A decoder of whose parameters only embedding and head are there, and those."""
    decoder = build_decoder(qwen3.spec(TARGET), dtype=dtype, device=device)
    rng = torch.Generator().manual_seed(1)
    embedding, head = (torch.randn(VOCABULARY, TARGET["hidden_size"], generator=rng) for _ in range(2))
    decoder.embedding.weight.data.copy_(embedding)
    decoder.get_parameter("head.weight").data.copy_(head)
    return decoder, embedding, head


@dataclass
class Bench:
    """A drafter with slots, to which hidden states are given that nobody computed."""

    name: str
    context: int = 200
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    taken: dict[int, list[Tensor]] = field(default_factory=dict)  # by slot, what each token of it had

    def __post_init__(self) -> None:
        self.config = CONFIGS[self.name]
        self.spec, self.tensors = dflash_spec(self.config), dflash_tensors(self.config, 3)
        self.decoder, self.embedding, self.head = target(self.dtype, self.device)
        layout = CacheLayout(cache_groups(self.decoder.spec), 16, (9,), SLOTS, True, self.spec.block - 1, CHECKPOINTS)
        types = {"compute": self.dtype, "kv": torch.float16, "int64": torch.int64}
        self.windows = tuple(
            torch.zeros(layout.pool_states, *state.shape, dtype=types[state.type], device=self.device)
            for state in dflash_cache(self.spec, self.context).states
        )
        for ring in self.windows[1:]:
            ring.fill_(float("nan"))
        surroundings = Surroundings(
            self.decoder, Pools((), (), (), (), (), windows=self.windows), layout,
            Dtypes(str(self.dtype).removeprefix("torch."), "float32", "float32", ()), 0, (), self.context, SLOTS,  # type: ignore[arg-type]
        )
        model = filled(self.spec, self.tensors, self.dtype, self.device)
        self.drafter = DFlashDrafter(model, surroundings, self.spec.block - 1)
        self.rng = torch.Generator().manual_seed(5)

    def admit(self, slot: int) -> None:
        self.taken[slot], self.windows[0][slot] = [], 0
        request = Request("r", (1,), SamplingParams(), seed=0, max_tokens=9)
        self.drafter.admit([Admission(0, slot, request)])

    def observe(self, rows: Sequence[tuple[int, int, int]], at_least: int = 1) -> None:
        """rows: (slot, tokens, how many of them are kept). at_least: tokens that the host thinks every row may have."""
        self.drafter.observe(self.step(rows, at_least))

    def step(self, rows: Sequence[tuple[int, int, int]], at_least: int = 1) -> Seen:
        """What is seen of a step, which the slots have then."""
        tokens = sum(count for _, count, _ in rows)
        taps = [torch.randn(tokens, self.spec.hidden, generator=self.rng).to(self.dtype) for _ in self.spec.taps]
        counts = torch.tensor([count for _, count, _ in rows])
        starts = torch.tensor([len(self.taken[slot]) for slot, _, _ in rows])
        offsets = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
        within = torch.arange(tokens) - offsets[:-1].repeat_interleave(counts)
        slots, kept = (torch.tensor(part, device=self.device) for part in list(zip(*rows, strict=True))[::2])
        positions, ends, nothing = starts.repeat_interleave(counts) + within, (starts + counts).int(), torch.zeros(0)
        batch = Batch(
            torch.zeros(tokens, dtype=torch.int64), positions.to(self.device), offsets.int().to(self.device), slots, ends,
            (), (), tuple(max(count, at_least) for _, count, _ in rows),
        )
        for (slot, _, keeps), begin in zip(rows, offsets.tolist(), strict=False):
            self.taken[slot] += list(torch.cat(taps, 1)[begin : begin + keeps])
        seen = tuple(tap.to(self.device) for tap in taps)
        return Seen(batch, seen, nothing, starts.to(self.device), kept, nothing, nothing)

    def propose(self, slots: Sequence[int], anchors: Sequence[int], most: int | None = None) -> Tensor:
        positions = torch.tensor([len(self.taken.get(slot, ())) for slot in slots])
        return self.drafter.propose(Asked(
            torch.tensor(slots), positions, torch.tensor(anchors), positions, (), most or self.drafter.most, greedy
        )).tokens

    def expected(self, slot: int, anchor: int) -> list[int]:
        """By the formula, from all that the slot's sequence had; its scores do not tie."""
        config, own = self.config, self.config["dflash_config"]
        hidden = self.formula(slot, anchor)
        if own.get("selector_rank"):
            tokens, _ = selector_walk(self.tensors, self.head, hidden, anchor, own["selector_top_k"])
            return tokens
        assert config["hidden_size"] == hidden.shape[1]
        found: list[int] = (hidden[1:] @ self.head.T).argmax(1).tolist()
        return found

    def formula(self, slot: int, anchor: int) -> Tensor:
        config, own = self.config, self.config["dflash_config"]
        context = torch.stack(self.taken[slot])
        full = config["layer_types"][0] == "full_attention"
        return dflash_block(
            self.tensors, self.embedding, context.float(), anchor, layers=config["num_hidden_layers"],
            block=own["block_size"], mask_token=own["mask_token_id"], heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"], head_size=config["head_dim"], theta=config["rope_theta"],
            window=1 << 30 if full else config["sliding_window"], eps=config["rms_norm_eps"],
            group=own.get("conv_group_size"),
        )

    def block(self, slot: int, anchor: int) -> Tensor:
        """The drafter's hidden states [B, hidden] of a lone row."""
        positions = torch.tensor([len(self.taken[slot])])
        asked = Asked(torch.tensor([slot]), positions, torch.tensor([anchor]), positions, (), 1, greedy)
        self.drafter.propose(asked)
        return self.drafter._block(asked)[0]


def test_the_published_drafter_takes_no_memory_to_declare() -> None:
    model = build_dflash(dflash_spec(PUBLISHED), dtype=torch.bfloat16, device=torch.device("meta"))
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_924_404_480


@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_loaded_from_its_directory(name: str, tmp_path: Path) -> None:
    tensors = dflash_tensors(CONFIGS[name], 3)
    model = replace(published_model("qwen3.8-27b"), spec=qwen3.spec(TARGET))
    files = open_dflash(write_dflash(tmp_path / "drafter", CONFIGS[name], tensors), model.spec)
    loaded = build_dflash(files.spec, dtype=torch.float32, device=CPU, formats=files.formats)
    load_weights(drafter_model(model, files), loaded)
    expected = dict(filled(files.spec, tensors, torch.float32).named_parameters())
    for path, parameter in loaded.named_parameters():
        assert torch.equal(parameter, expected[path]), path


@pytest.mark.parametrize("scheme", [Scheme(4, 4), Scheme(8, 0)], ids=lambda scheme: f"w{scheme.bits}g{scheme.group}")
def test_a_quantised_drafter_is_its_dequantised_weights(scheme: Scheme, tmp_path: Path) -> None:
    """Of compressed-tensors: the projections of its layers, and of its convolutions that of one MLP alone."""
    config = dflash_config(VOCABULARY, intermediate_size=48)
    folder = write_dflash(tmp_path / "drafter", config, dflash_tensors(config, 3))
    meant = compress(folder, scheme, lambda base: "layers.0.mlp." in base or "self_attn." in base)
    model = replace(published_model("qwen3.8-27b"), spec=qwen3.spec(TARGET))
    files = open_dflash(folder, model.spec)
    assert len(files.formats) == 2 * 3 + 2
    found = build_dflash(files.spec, dtype=torch.float64, device=CPU, formats=files.formats)
    load_weights(drafter_model(model, files), found)
    found.prepare()
    expected = filled(files.spec, meant, torch.float64)
    rng = torch.Generator().manual_seed(2)
    shape = (1, 24, files.spec.attention.kv_heads, files.spec.attention.head_dim)
    tapped, embedded = (torch.randn(9, n * 32, generator=rng).double() for n in (2, 1))
    turned, blocks = (angles(positions, frequencies(files.spec.attention.rope, CPU), torch.float64)
                      for positions in (torch.arange(9), torch.arange(9, 13)))
    states = []
    for module in (found, expected):
        places = torch.arange(1, 25)[None] * (torch.arange(24) < 9)
        rings = [KeyRing(*torch.zeros(2, *shape).double(), places) for _ in range(2)]
        with torch.inference_mode():
            module.keep(tapped, turned, rings, torch.arange(9))
            start, slot = torch.tensor([9]), torch.tensor([0])
            states.append(module(embedded[:4], blocks, rings, slot, start, torch.arange(4)))
    assert (states[0] - states[1]).abs().max() <= 1e-9 * states[1].abs().max()


@torch.inference_mode()
@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_the_formula(name: str) -> None:
    """Contexts from one token to more than a window, which came as a prompt and then in few tokens, some of them rejected."""
    for prompt, steps in ((1, ()), (17, (1,)), (20, (3, 1, 2)), (60, (4, 4, 1)), (40, (2,) * 20)):
        bench = Bench(name)
        bench.admit(2)
        if prompt:
            bench.observe([(2, prompt, prompt)], at_least=17)
        for kept in steps:
            bench.observe([(2, 4, kept)])
        found, expected = bench.block(2, 7), bench.formula(2, 7)
        assert (found - expected).abs().max() <= 1e-4 * max(1.0, float(expected.abs().max())), (prompt, steps)
        assert bench.propose([2], [7])[0].tolist() == bench.expected(2, 7)
        assert bench.propose([2], [7], 2)[0].tolist() == bench.expected(2, 7)[:2]


@torch.inference_mode()
@pytest.mark.parametrize("name", CONFIGS)
def test_rows_do_not_know_each_other(name: str) -> None:
    """Prompts beside rows that verify, slots that begin anew, rows of padding: everybody's drafts are the formula's."""
    rng, bench = random.Random(8), Bench(name, dtype=torch.float64)
    for slot in range(SLOTS):
        bench.admit(slot)
    for _ in range(12):
        rows = []
        for slot in rng.sample(range(SLOTS), rng.randint(1, SLOTS)):
            if rng.random() < 0.15:
                bench.admit(slot)
            count = rng.choice((1, 2, 4, 4, 30)) if len(bench.taken[slot]) < 150 else 1
            rows.append((slot, count, rng.randint(1, count) if count <= 4 else count))
        bench.observe(rows)
        begun = [slot for slot in range(SLOTS) if bench.taken[slot]]
        slots = rng.sample(begun, rng.randint(1, len(begun)))
        anchors = [rng.randrange(VOCABULARY) for _ in slots]
        found = bench.propose([*slots, SLOTS, SLOTS], [*anchors, 0, 0])
        for row, (slot, anchor) in enumerate(zip(slots, anchors, strict=True)):
            assert found[row].tolist() == bench.expected(slot, anchor)
        assert torch.equal(bench.propose([*slots, SLOTS, SLOTS], [*anchors, 0, 0])[: len(slots)], found[: len(slots)])


@torch.inference_mode()
@pytest.mark.parametrize("name", CONFIGS)
def test_a_checkpoint_takes_what_waits(name: str) -> None:
    """A slot's windows, once it is settled, are all that its sequence had: a slot that has them proposes the same."""
    bench = Bench(name)
    bench.admit(0)
    bench.admit(3)
    bench.observe([(0, 33, 33)])
    for kept in (1, 4, 2):
        bench.observe([(0, 4, kept)])
    bench.drafter.settle([0])
    for window in bench.windows:
        window[SLOTS + 1] = window[0]  # a checkpoint
    bench.observe([(0, 4, 3)])
    bench.taken[3] = bench.taken[0][:-3]
    for window in bench.windows:
        window[3] = window[SLOTS + 1]
    assert bench.propose([3], [7])[0].tolist() == bench.expected(3, 7)
    assert bench.propose([0], [7])[0].tolist() == bench.expected(0, 7)


@torch.inference_mode()
def test_many_skipped_tokens_come_in_by_and_by() -> None:
    """64 wait; a proposal for 64 rows takes in some of each, the newest first; older ones are masked, and never read."""
    bench, rows = Bench("large-block", context=400), 64
    bench.admit(1)
    bench.observe([(1, 20, 20)])
    for _ in range(30):
        bench.observe([(1, 3, 3)])
    waiting = bench.drafter._waiting.positions[1]
    assert sorted(waiting.tolist()) == list(range(46, 110))
    crowd = [1] + [SLOTS] * (rows - 1)
    seen_before = set()
    for taken in range(1, 4):
        bench.propose(crowd, [7] * rows)
        there = {p - 1 for p in bench.windows[0][1].tolist() if p}
        assert there >= set(range(110 - min(8 * taken, 24), 110)) and there >= seen_before - set(range(110 - 24))
        seen_before = there
    assert bench.propose([1], [7])[0].tolist() == bench.expected(1, 7)  # a window of 24 is whole
