"""The multi-token head against the formula of its published layout, against transformers' own layer, and in any company."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.drafter_formulas import mtp_hidden
from tests.support.oracle import transformers
from tests.support.packing import Packing, fill_decoder
from tests.support.tiny import checkpoint_tensors, mtp_tensors, random_model, tiny_config
from torch import Tensor

from headrace.cache.layout import CacheLayout
from headrace.layers.batch import Pools
from headrace.models import qwen3_5
from headrace.models.decoder import Decoder
from headrace.models.spec import AttentionSpec, ModelSpec
from headrace.plan.dtypes import Dtypes
from headrace.plan.mtp import mtp_layer, mtp_weights
from headrace.speculate.drafter import Asked, Seen, Surroundings
from headrace.speculate.mtp import MtpDrafter, MtpModule, build_mtp

VOCABULARY, CPU = 50, torch.device("cpu")
DTYPES = Dtypes("float64", "float64", "float64", ())
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {},
    "one-key-head": {"num_key_value_heads": 1, "head_dim": 8, "hidden_size": 24, "rms_norm_eps": 1e-5},
    "turned-whole": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 1.0,
                                         "mrope_section": [4, 2, 2]}},
}


def fields_of(name: str) -> dict[str, Any]:
    return {**tiny_config("qwen3_5_text"), "vocab_size": VOCABULARY, "model_type": "qwen3_5_text", **CONFIGS[name]}


def module_of(spec: ModelSpec, tensors: Mapping[str, Tensor], dtype: torch.dtype, index: int = 0) -> MtpModule:
    """The head. index: of its layer in the pools."""
    module = build_mtp(spec, mtp_layer(spec), index, dtype=dtype, device=CPU)
    parameters = dict(module.named_parameters())
    for weight in mtp_weights(spec, tensors.keys()).weights:
        parameters[weight.target].data[weight.offset : weight.offset + weight.shape[0]] = tensors[weight.source]
    module.prepare()
    return module


class Head:
    """One sequence of a head, in pages of three tokens in disorder, poisoned before they are written."""

    def __init__(self, module: MtpModule, tokens: int, seed: int = 0) -> None:
        spec, dtype, pages = module.attention.spec, module.fc.weight.dtype, -(-(tokens + 1) // 3)
        keys, values = (torch.full((pages + 2, 3, spec.kv_heads, spec.head_dim), float("nan"), dtype=dtype) for _ in range(2))
        self.module, self.pools = module, Pools((keys,), (values,), (None,), (None,), (0,))
        self.table = torch.tensor(random.Random(seed).sample(range(pages + 2), pages))[None]

    def at(self, places: Tensor) -> Tensor:
        return self.table[0, places // 3] * 3 + places % 3

    def keep(self, tokens: Tensor, embedding: Tensor, hidden: Tensor, first: int) -> None:
        places = torch.arange(first, first + len(hidden))
        self.module.keep(self.module.join(tokens, embedding, hidden), places, self.pools, self.at(places))

    def apply(self, token: Tensor, embedding: Tensor, hidden: Tensor, place: int) -> Tensor:
        places, x = torch.tensor([place]), self.module.join(token[None], embedding, hidden[None])
        return self.module(x, places, self.pools, self.table, self.at(places))


def drawn(spec: ModelSpec, tokens: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """(embedding, hidden states of the first tokens, the token after each)."""
    rng = torch.Generator().manual_seed(seed)
    embedding, hidden = (torch.randn(n, spec.hidden, generator=rng) for n in (VOCABULARY, tokens))
    return embedding, hidden, torch.randint(VOCABULARY, (tokens,), generator=rng)


@torch.inference_mode()
@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_the_formula_whatever_was_kept_before(name: str) -> None:
    fields = fields_of(name)
    spec, tensors = qwen3_5.spec(fields), mtp_tensors(fields, 3, torch.float32)
    mixer = mtp_layer(spec).mixer
    assert isinstance(mixer, AttentionSpec)
    embedding, hidden, following = drawn(spec, 23, 1)
    expected = mtp_hidden(
        tensors, embedding, hidden, following, heads=mixer.heads, kv_heads=mixer.kv_heads, head_size=mixer.head_dim,
        rotary_size=mixer.rope.rotary_dims, theta=mixer.rope.theta, eps=spec.norm_eps,
    )
    for before in (0, 1, 2, 3, 7, 22):
        head = Head(module_of(spec, tensors, torch.float32), len(hidden), before)
        head.keep(following[:before], embedding, hidden[:before], 1)
        for position in range(before, min(before + 2, len(hidden))):
            found = head.apply(following[position], embedding, hidden[position], position + 1)
            assert (found[0] - expected[position]).abs().max() <= 1e-4, (before, position)


@torch.inference_mode()
@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_the_layer_of_transformers(name: str) -> None:
    from transformers.modeling_layers import MtpLayer
    from transformers.models.qwen3_5 import modeling_qwen3_5

    fields = fields_of(name)
    spec, tensors = qwen3_5.spec(fields), mtp_tensors(fields, 4, torch.float32)
    config = transformers.AutoConfig.for_model(**{**fields, "layer_types": ["full_attention"], "num_hidden_layers": 1})
    config._attn_implementation = "eager"
    layer = MtpLayer(config, modeling_qwen3_5.Qwen3_5DecoderLayer, modeling_qwen3_5.Qwen3_5RMSNorm, 0)
    names = (("mtp.layers.0.", "mtp_block."), ("mtp.fc.", "eh_proj."), ("mtp.pre_fc_norm_embedding.", "enorm."),
             ("mtp.pre_fc_norm_hidden.", "hnorm."), ("mtp.norm.", "post_norm."))
    layer.load_state_dict({
        new + name.removeprefix(old): tensor for name, tensor in tensors.items() for old, new in names if name.startswith(old)
    })
    embedding, hidden, following = drawn(spec, 9, 2)
    positions = torch.arange(len(hidden))[None]
    rotary = modeling_qwen3_5.Qwen3_5TextRotaryEmbedding(config)
    mask = torch.full((9, 9), float("-inf")).triu(1)[None, None]
    turned = rotary(hidden[None], positions.expand(3, 1, -1))
    expected = layer(embedding[following][None], hidden[None], turned, mask, positions, None)[0]
    head = Head(module_of(spec, tensors, torch.float32), len(hidden))
    for position in range(len(hidden)):
        found = head.apply(following[position], embedding, hidden[position], position + 1)
        assert (found[0] - expected[position]).abs().max() <= 1e-4, position


def greedy(scores: Tensor, place: int, candidates: Tensor | None = None) -> Tensor:
    return scores.argmax(-1)


class Company(Packing):
    """Sequences of a target whose layers all attend, so that tokens are taken back by a length; and its head."""

    def __init__(self, decoder: Decoder, module: MtpModule, most: int, seed: int) -> None:
        spec, pages, slots = decoder.spec, 60, 5
        super().__init__(spec, torch.float64, page_tokens=3, pages=pages, slots=slots, seed=seed)
        self.groups = (*self.groups, replace(self.groups[0], index=1, layers=(len(spec.layers),)))
        self._free_pages.append(random.Random(seed + 1).sample(range(pages), pages))
        mixer, old = module.attention.spec, self.pools
        keys, values = (torch.full((pages + 1, 3, mixer.kv_heads, mixer.head_dim), float("nan"), dtype=torch.float64)
                        for _ in range(2))
        self.pools = replace(
            old, keys=(*old.keys, keys), values=(*old.values, values), states=(*old.states, None), group_of=(*old.group_of, 1),
            conv_tails=(*old.conv_tails, None), windows=(torch.full((slots, spec.hidden), float("nan"), dtype=torch.float64),),
        )
        layout = CacheLayout(self.groups, 3, (pages, pages), slots - 1, padding=True, drafts=most)
        around = Surroundings(decoder, self.pools, layout, DTYPES, len(spec.layers), (1,), 64, slots)
        self.decoder, self.drafter = decoder, MtpDrafter(module, around, most)
        self.newest = torch.zeros(slots, dtype=torch.int64)

    def run(self, rows: Sequence[tuple[int, Sequence[int]]], kept: Sequence[int]) -> None:
        """A step of (sequence, tokens) rows, of which so many first tokens stay."""
        starts = torch.tensor([self.lengths[sequence] for sequence, _ in rows])
        batch = self.pack(rows)
        windows = replace(batch, page_tables=batch.page_tables[:1])
        final = self.decoder(windows, self.pools)
        seen = Seen(batch, (), final, starts, torch.tensor(kept), self.newest, torch.ones(len(rows), dtype=torch.bool))
        self.drafter.observe(seen)
        for (sequence, tokens), count in zip(rows, kept, strict=True):
            self.lengths[sequence] += count - len(tokens)

    def propose(self, rows: Mapping[int, int], counts: Sequence[int]) -> list[list[int]]:
        """Drafts behind the rows' next tokens, with pages for no more than are wanted."""
        lengths = dict(self.lengths)
        for sequence, count in zip(rows, counts, strict=True):
            self.lengths[sequence] += max(1, count)
            self._grow(sequence)
        ids = list(rows)
        tables = tuple(self._table(ids, group) for group in range(2))
        self.lengths = lengths
        asked = Asked(
            torch.tensor([self.slots[s] for s in ids]), torch.tensor(counts), torch.tensor(list(rows.values())),
            torch.tensor([lengths[s] for s in ids]), tables, max(counts), greedy,
        )
        found = self.drafter.propose(asked).tokens.tolist()
        return [drafts[:count] for drafts, count in zip(found, counts, strict=True)]


def slow_drafts(decoder: Decoder, tensors: Mapping[str, Tensor], tokens: Sequence[int], count: int) -> list[int]:
    """What the head proposes behind tokens, by the formula, from hidden states computed at once."""
    spec = decoder.spec
    mixer = mtp_layer(spec).mixer
    assert isinstance(mixer, AttentionSpec)
    packing = Packing(spec, torch.float64, page_tokens=4, pages=40, slots=1)
    packing.admit(0)
    hidden, following, drafts = decoder(packing.pack([(0, tokens[:-1])]), packing.pools), list(tokens[1:]), list[int]()
    for _ in range(count):
        made = mtp_hidden(
            {name: tensor.double() for name, tensor in tensors.items()}, decoder.embedding.weight, hidden,
            torch.tensor(following), heads=mixer.heads, kv_heads=mixer.kv_heads, head_size=mixer.head_dim,
            rotary_size=mixer.rope.rotary_dims, theta=mixer.rope.theta, eps=spec.norm_eps,
        )
        drafts.append(int(decoder.scores(made[-1:]).argmax()))
        following.append(drafts[-1])
        hidden = torch.cat([hidden, made[-1:]])
    return drafts


@torch.inference_mode()
@pytest.mark.parametrize("seed", range(4))
def test_proposals_are_the_formulas_whatever_steps_there_were(seed: int) -> None:
    """Sequences come in chunks of any size, beside each other; drafts are accepted in part, as chance has it, right or not."""
    rng = random.Random(seed)
    fields = {**fields_of("tiny"), "layer_types": ["full_attention"] * 2, "num_hidden_layers": 2}
    oracle = random_model("qwen3_5_text", {name: value for name, value in fields.items() if name != "model_type"}, seed)
    spec, tensors = qwen3_5.spec(fields), mtp_tensors(fields, seed, torch.float32)
    decoder = fill_decoder(spec, qwen3_5.weights(spec, None), checkpoint_tensors(oracle), torch.float64)
    company = Company(decoder, module_of(spec, tensors, torch.float64, len(spec.layers)), 4, seed)
    known = {sequence: [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 20))] for sequence in range(3)}
    for sequence in known:
        company.admit(sequence)
    proposals = 0
    for _ in range(14):
        rows, kept = list[tuple[int, list[int]]](), list[int]()
        decoding = {s: tokens[-1] for s, tokens in known.items() if company.lengths[s] == len(tokens) - 1 > 0}
        ready = {s: newest for s, newest in decoding.items() if rng.random() < 0.8}
        counts = [rng.randint(0, 4) for _ in ready]
        drafts = company.propose(ready, counts) if any(counts) else [[] for _ in ready]
        for (sequence, newest), proposed in zip(ready.items(), drafts, strict=True):
            assert proposed == slow_drafts(decoder, tensors, known[sequence], len(proposed)), (sequence, known[sequence])
            proposals += len(proposed)
            accepted = rng.randint(0, len(proposed))
            rows.append((sequence, [newest, *proposed]))
            kept.append(1 + accepted)
            known[sequence] += [*proposed[:accepted], rng.randrange(VOCABULARY)]
        for sequence, tokens in known.items():
            if sequence not in ready and company.lengths[sequence] < len(tokens) - 1:
                chunk = tokens[company.lengths[sequence] : -1][: rng.randint(1, 7)]
                rows.append((sequence, chunk))
                kept.append(len(chunk))
        if rows:
            company.run(rows, kept)
    assert proposals > 25
