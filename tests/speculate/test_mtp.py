"""The multi-token head against the formula of its published layout, against transformers' own layer, and in any company."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.support.drafter_formulas import mtp_hidden
from tests.support.oracle import transformers
from tests.support.tiny import mtp_tensors, tiny_config
from torch import Tensor

from headrace.layers.batch import Pools
from headrace.models import qwen3_5
from headrace.models.spec import AttentionSpec, ModelSpec
from headrace.plan.mtp import mtp_layer, mtp_weights
from headrace.speculate.mtp import MtpModule, build_mtp

VOCABULARY, CPU = 50, torch.device("cpu")
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {},
    "one-key-head": {"num_key_value_heads": 1, "head_dim": 8, "hidden_size": 24, "rms_norm_eps": 1e-5},
    "turned-whole": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 1.0,
                                         "mrope_section": [4, 2, 2]}},
}


def fields_of(name: str) -> dict[str, Any]:
    return {**tiny_config("qwen3_5_text"), "vocab_size": VOCABULARY, "model_type": "qwen3_5_text", **CONFIGS[name]}


def module_of(spec: ModelSpec, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> MtpModule:
    """The head, in the pools' first layer."""
    module = build_mtp(spec, mtp_layer(spec), 0, dtype=dtype, device=CPU)
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

    def keep(self, embedded: Tensor, hidden: Tensor, first: int) -> None:
        places = torch.arange(first, first + len(hidden))
        self.module.keep(embedded, hidden, places, self.pools, self.at(places))

    def apply(self, embedded: Tensor, hidden: Tensor, place: int) -> Tensor:
        places = torch.tensor([place])
        return self.module(embedded, hidden, places, self.pools, self.table, self.at(places))


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
        head.keep(embedding[following[:before]], hidden[:before], 1)
        for position in range(before, min(before + 2, len(hidden))):
            found = head.apply(embedding[following[position]][None], hidden[position][None], position + 1)
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
        found = head.apply(embedding[following[position]][None], hidden[position][None], position + 1)
        assert (found[0] - expected[position]).abs().max() <= 1e-4, position
