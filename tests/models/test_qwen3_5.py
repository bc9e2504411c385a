from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.errors import CheckpointError
from headrace.models import qwen3_5
from headrace.models.spec import AttentionSpec, GatedDeltaSpec

# The text model of Qwen3.8-27B.
TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_text", "hidden_size": 5120, "num_hidden_layers": 64, "intermediate_size": 17408,
    "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "attn_output_gate": True,
    "full_attention_interval": 4, "vocab_size": 248320, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "output_gate_type": "swish", "attention_bias": False, "max_position_embeddings": 262144, "tie_word_embeddings": False,
    "mtp_num_hidden_layers": 1, "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_interleaved": True,
                        "mrope_section": [11, 11, 10]},
}
CONFIG = {"model_type": "qwen3_5", "text_config": TEXT, "vision_config": {}, "tie_word_embeddings": False}
TEXT_PARAMETERS = 26_895_998_464
GATED_DELTA = ("in_proj_qkv.weight", "in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight", "conv1d.weight", "A_log",
               "dt_bias", "norm.weight", "out_proj.weight")
ATTENTION = tuple(f"{name}.weight" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"))


def names(prefix: str) -> Iterator[str]:
    yield from (f"{prefix}embed_tokens.weight", f"{prefix}norm.weight", "lm_head.weight")
    for index in range(64):
        layer = f"{prefix}layers.{index}."
        yield from (f"{layer}input_layernorm.weight", f"{layer}post_attention_layernorm.weight")
        yield from (f"{layer}mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
        mixer, parts = ("self_attn", ATTENTION) if index % 4 == 3 else ("linear_attn", GATED_DELTA)
        yield from (f"{layer}{mixer}.{part}" for part in parts)


def test_the_27b_model_has_its_layers_and_its_size() -> None:
    spec = qwen3_5.spec(CONFIG)
    kinds = [type(layer.mixer) for layer in spec.layers]
    assert kinds == [AttentionSpec if i % 4 == 3 else GatedDeltaSpec for i in range(64)]
    assert (spec.norm_offset, spec.mtp_layers, spec.max_context) == (1.0, 1, 262144)
    mixer = spec.layers[3].mixer
    assert isinstance(mixer, AttentionSpec) and mixer.gated and mixer.qk_norm and mixer.rope.rotary_dims == 64
    found = qwen3_5.weights(spec, list(names("model.language_model.")))
    assert sum(math.prod(w.shape) for w in found.weights) == TEXT_PARAMETERS


def test_vision_is_left_out_and_the_mtp_head_kept() -> None:
    spec = qwen3_5.spec(CONFIG)
    others = ["model.visual.patch_embed.proj.weight", "model.visual.merger.norm.weight", "mtp.fc.weight"]
    found = qwen3_5.weights(spec, [*names("model.language_model."), *others])
    assert found.left_out == (("vision tower", tuple(sorted(others[:2]))),)
    assert found.kept == ("mtp.fc.weight",)


def test_text_checkpoint_and_multimodal_one_are_the_same_model() -> None:
    spec = qwen3_5.spec(TEXT)
    assert spec == qwen3_5.spec(CONFIG)
    plain, nested = qwen3_5.weights(spec, list(names("model."))), qwen3_5.weights(spec, list(names("model.language_model.")))
    assert [w.target for w in plain.weights] == [w.target for w in nested.weights]


@pytest.mark.parametrize(("field", "value"), [
    ("attn_output_gate", False), ("output_gate_type", "sigmoid"), ("layer_types", ["full_attention"]),
    ("layer_types", ["sliding_attention"] * 64), ("linear_num_value_heads", 40), ("full_attention_interval", 0),
])
def test_unsupported_fields_are_named(field: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"'text_config.{field}'"):
        qwen3_5.spec({**CONFIG, "text_config": TEXT | {field: value}})
