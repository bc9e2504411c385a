"""Llama, and what shares its shape (SmolLM2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from headrace.models.fields import Fields, head_counts, rope
from headrace.models.mapping import TensorMapping, map_decoder
from headrace.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, WeightMap

MODEL_TYPES = ("llama",)


def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Raises CheckpointError naming a config field that is missing or not supported."""
    fields = Fields(config)
    fields.require("hidden_act", "silu", "silu")
    hidden, (heads, kv_heads) = fields.count("hidden_size"), head_counts(fields)
    head_dim = fields.count("head_dim", hidden // heads)
    bias = fields.flag("attention_bias")
    mixer = AttentionSpec(heads, kv_heads, head_dim, rope(fields, head_dim), qkv_bias=bias, out_bias=bias)
    layer = LayerSpec(mixer, MlpSpec(fields.count("intermediate_size"), fields.flag("mlp_bias")))
    return ModelSpec(
        model_type="llama",
        vocab_size=fields.count("vocab_size"),
        hidden=hidden,
        layers=(layer,) * fields.layer_count("num_hidden_layers"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        max_context=fields.count("max_position_embeddings", 2048),
        tied=fields.flag("tie_word_embeddings"),
    )


def weights(spec: ModelSpec, names: Collection[str] | None) -> WeightMap:
    """Raises CheckpointError naming a tensor that is missing, or one that the model does not have."""
    mapping = TensorMapping(names)
    map_decoder(mapping, spec, "model.")
    mapping.leave_out("rotary frequencies, which are computed", suffix=".rotary_emb.inv_freq")
    return mapping.finish()
