"""Published models by name, as their config.json describes them, for when there is no checkpoint at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.models import declaration_for
from headrace.models.spec import ModelSpec, Weight, WeightMap
from headrace.plan.checkpoint import Checkpoint, Model, TensorHeader
from headrace.plan.mtp import mtp_weights
from headrace.quant import FORMATS as WEIGHT_FORMATS
from headrace.quant import LinearFormat

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
    "mtp_num_hidden_layers": 1,
    "eos_token_id": 248_044,
    "dtype": "bfloat16",
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}

_SMOLLM2_135M: Mapping[str, Any] = {
    "model_type": "llama",
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "bfloat16",
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
}

SHAPES: Mapping[str, Mapping[str, Any]] = {"qwen3.8-27b": _QWEN38_27B_TEXT, "smollm2-135m": _SMOLLM2_135M}
_LOW_BIT = WEIGHT_FORMATS["compressed_tensors"]  # asked for by name: its kernels need torch when they run, and this does not
_EIGHT_BITS = _LOW_BIT.LowBit(8, 0, scale="bfloat16")
_LAYER_FORMATS = {
    "w4a16": _LOW_BIT.LowBit(4, 128, scale="bfloat16"),
    "w4a8-fp8": _LOW_BIT.LowBit(4, 128, scale="bfloat16", activations="float8_e4m3fn"),
    "w4a8-int8": _LOW_BIT.LowBit(4, 128, scale="bfloat16", activations="int8"),
    "w8a8": replace(_EIGHT_BITS, activations="int8"),
}
_HEAD8 = "-head8"
FORMATS = ("bf16", *(name + head for name in _LAYER_FORMATS for head in ("", _HEAD8)))
"""Weight formats that a shape may be asked for in; the first is what it is without one.

w4: linear layers of 4 bits in groups of 128, w8: of 8 bits with one scale a row, but for the decay's small ones and the head;
that has 8 bits with -head8. a8: the inputs of those layers rounded to fp8 or int8 (w8a8: int8).
"""
_BYTES = {"int32": ("I32", 4), "int8": ("I8", 1), None: ("BF16", 2), "bfloat16": ("BF16", 2)}


def shape(name: str) -> Mapping[str, Any]:
    """The configuration of a published model. Raises ConfigError for a name that is not declared."""
    if name not in SHAPES:
        raise ConfigError(f"no model is declared under the name {name!r}; there are {', '.join(SHAPES)}")
    return SHAPES[name]


def declared_model(text: str) -> Model:
    """What a checkpoint of "NAME" or "NAME:FORMAT" would hold, without a file: headers only, and no weights.

    Raises ConfigError for a name or a format that there is not.
    """
    name, _, given = text.partition(":")
    format = given or FORMATS[0]
    if format not in FORMATS:
        raise ConfigError(f"there is no weight format {format!r}; there are {', '.join(FORMATS)}")
    config = shape(name)
    declaration = declaration_for(config["model_type"])
    spec: ModelSpec = declaration.spec(config)
    weight_map: WeightMap = declaration.weights(spec, None)
    weight_map, formats = _stored(weight_map, format)
    head = mtp_weights(spec, None).weights if spec.mtp_layers else ()
    path = Path(name)
    tensors = {w.source: _header(path, w) for w in (*weight_map.weights, *head)}
    weight_map = replace(weight_map, kept=tuple(w.source for w in head))
    return Model(Checkpoint(path, "hf", config, tensors), spec, weight_map, formats)


def _stored(weight_map: WeightMap, format: str) -> tuple[WeightMap, Mapping[str, LinearFormat]]:
    weights: list[Weight] = []
    formats: dict[str, LinearFormat] = {}
    for weight in weight_map.weights:
        found = _format_of(weight, format)
        if found is None:
            weights.append(weight)
        else:
            formats[weight.target.removesuffix(".weight")] = found
            weights += _LOW_BIT.stored_parts(weight, found, {})
    return replace(weight_map, weights=tuple(weights)), formats


def _format_of(weight: Weight, format: str) -> Any:
    """A LowBit, or None for plain weights."""
    if weight.target == "head.weight" and format.endswith(_HEAD8):
        return _EIGHT_BITS
    layer = weight.target.startswith("layers.") and len(weight.shape) == 2 and weight.target.endswith(".weight")
    if format == "bf16" or not layer or weight.target.endswith(".ab.weight") or weight.shape[1] % 128:
        return None
    return _LAYER_FORMATS[format.removesuffix(_HEAD8)]


def _header(path: Path, weight: Weight) -> TensorHeader:
    dtype, size = _BYTES[weight.dtype]
    return TensorHeader(path, dtype, weight.shape, 0, size * prod(weight.shape))
