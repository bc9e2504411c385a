"""Qwen3.5, 3.6 and 3.8, dense: Gated DeltaNet layers with a gated full-attention layer here and there.

Both the text model and the multimodal checkpoint, of which the language model is served and the vision tower left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from headrace.models.fields import Fields, head_counts, rope
from headrace.models.mapping import TensorMapping, map_decoder
from headrace.models.spec import AttentionSpec, GatedDeltaSpec, LayerSpec, MlpSpec, ModelSpec, WeightMap

MODEL_TYPES = ("qwen3_5", "qwen3_5_text")


def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Raises CheckpointError naming a config field that is missing or not supported."""
    whole = Fields(config)
    nested = whole.get("text_config") is not None
    fields = whole.mapping("text_config") if nested else whole
    fields.require("hidden_act", "silu", "silu")
    fields.require("output_gate_type", "swish", "swish", "silu")
    fields.require("attn_output_gate", True, True)
    mlp = MlpSpec(fields.count("intermediate_size"))
    mixers: dict[str, AttentionSpec | GatedDeltaSpec] = {
        "full_attention": _attention(fields), "linear_attention": _gated_delta(fields),
    }
    tied = whole if whole.get("tie_word_embeddings") is not None else fields
    return ModelSpec(
        model_type="qwen3_5",
        vocab_size=fields.count("vocab_size"),
        hidden=fields.count("hidden_size"),
        layers=tuple(LayerSpec(mixers[kind], mlp) for kind in _layer_types(fields)),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        max_context=fields.count("max_position_embeddings", 32768),
        norm_offset=1.0,
        tied=tied.flag("tie_word_embeddings"),
        mtp_layers=fields.get("mtp_num_hidden_layers") or 0,
    )


def _attention(fields: Fields) -> AttentionSpec:
    heads, kv_heads = head_counts(fields, 4)
    head_dim, bias = fields.count("head_dim", 256), fields.flag("attention_bias")
    rotary = rope(fields, head_dim, partial=0.25, partial_allowed=True)
    return AttentionSpec(heads, kv_heads, head_dim, rotary, gated=True, qk_norm=True, qkv_bias=bias, out_bias=bias)


def _gated_delta(fields: Fields) -> GatedDeltaSpec:
    key_heads, value_heads = fields.count("linear_num_key_heads", 16), fields.count("linear_num_value_heads", 32)
    if value_heads % key_heads:
        raise fields.error("linear_num_value_heads", f"must be a multiple of linear_num_key_heads, {key_heads}")
    key_dim, value_dim = fields.count("linear_key_head_dim", 128), fields.count("linear_value_head_dim", 128)
    return GatedDeltaSpec(key_heads, value_heads, key_dim, value_dim, fields.count("linear_conv_kernel_dim", 4))


def _layer_types(fields: Fields) -> tuple[str, ...]:
    """By layer_types, or a full-attention layer at the end of every full_attention_interval layers."""
    count = fields.layer_count("num_hidden_layers")
    types = fields.choices("layer_types", ("full_attention", "linear_attention"))
    if types is None:
        interval = fields.count("full_attention_interval", 4)
        return tuple("linear_attention" if (i + 1) % interval else "full_attention" for i in range(count))
    if len(types) != count:
        raise fields.error("layer_types", f"must have num_hidden_layers, {count}, entries")
    return types


def weights(spec: ModelSpec, names: Collection[str] | None) -> WeightMap:
    """Raises CheckpointError naming a tensor that is missing, or one that the model does not have."""
    mapping = TensorMapping(names)
    multimodal = any(name.startswith("model.language_model.") for name in names or ())
    map_decoder(mapping, spec, "model.language_model." if multimodal else "model.")
    mapping.keep("mtp.")
    mapping.leave_out("vision tower", prefix="model.visual.")
    return mapping.finish()
