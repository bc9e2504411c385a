"""Published models by name, as their config.json describes them, for when there is no checkpoint at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import ConfigError

_QWEN38_27B_TEXT: Mapping[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248_320,
    "hidden_size": 5120,
    "intermediate_size": 17_408,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "max_position_embeddings": 262_144,
    "tie_word_embeddings": False,
    "eos_token_id": 248_044,
    "dtype": "bfloat16",
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}

SHAPES: Mapping[str, Mapping[str, Any]] = {"qwen3.8-27b": _QWEN38_27B_TEXT}


def shape(name: str) -> Mapping[str, Any]:
    """The configuration of a published model. Raises ConfigError for a name that is not declared."""
    if name not in SHAPES:
        raise ConfigError(f"no model is declared under the name {name!r}; there are {', '.join(SHAPES)}")
    return SHAPES[name]
