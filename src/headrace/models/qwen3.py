"""Qwen3, dense: attention with q/k norms, sliding windows on its last layers if the configuration says so."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from headrace.models.fields import Fields, head_counts, rope
from headrace.models.mapping import TensorMapping, map_decoder
from headrace.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, WeightMap

MODEL_TYPES = ("qwen3",)


def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Raises CheckpointError naming a config field that is missing or not supported."""
    fields = Fields(config)
    fields.require("hidden_act", "silu", "silu")
    heads, kv_heads = head_counts(fields)
    head_dim, bias = fields.count("head_dim", 128), fields.flag("attention_bias")
    mlp = MlpSpec(fields.count("intermediate_size"))
    rotary = rope(fields, head_dim)
    layers = tuple(
        LayerSpec(AttentionSpec(heads, kv_heads, head_dim, rotary, qk_norm=True, qkv_bias=bias, out_bias=bias, window=w), mlp)
        for w in _windows(fields)
    )
    return ModelSpec(
        model_type="qwen3",
        vocab_size=fields.count("vocab_size"),
        hidden=fields.count("hidden_size"),
        layers=layers,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        max_context=fields.count("max_position_embeddings", 32768),
        tied=fields.flag("tie_word_embeddings"),
    )


def _windows(fields: Fields) -> tuple[int | None, ...]:
    """Each layer's window: by layer_types, or sliding from layer max_window_layers on."""
    count, sliding = fields.layer_count("num_hidden_layers"), fields.flag("use_sliding_window")
    window = fields.count("sliding_window", 4096) if sliding else None
    types = fields.choices("layer_types", ("full_attention", "sliding_attention"))
    if types is None:
        first = fields.get("max_window_layers")
        first = 28 if first is None else first
        if type(first) is not int:
            raise fields.error("max_window_layers", "must be a whole number")
        return tuple(window if i >= first else None for i in range(count))
    if len(types) != count:
        raise fields.error("layer_types", f"must have num_hidden_layers, {count}, entries")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def weights(spec: ModelSpec, names: Collection[str] | None) -> WeightMap:
    """Raises CheckpointError naming a tensor that is missing, or one that the model does not have."""
    mapping = TensorMapping(names)
    map_decoder(mapping, spec, "model.")
    return mapping.finish()
