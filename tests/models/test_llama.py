from __future__ import annotations

from typing import Any

from headrace.models import llama
from headrace.models.spec import AttentionSpec, RopeSpec

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 2, "intermediate_size": 1536, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192, "tie_word_embeddings": True,
    "rope_theta": 100000.0,
}


def mixer(**fields: Any) -> AttentionSpec:
    found = llama.spec(CONFIG | fields).layers[0].mixer
    assert isinstance(found, AttentionSpec)
    return found


def test_head_dim_and_key_heads_have_their_old_defaults() -> None:
    assert mixer() == AttentionSpec(9, 3, 64, RopeSpec(100000.0, 64))
    assert mixer(num_key_value_heads=None).kv_heads == 9
    assert mixer(head_dim=32).rope.rotary_dims == 32


def test_llama3_scaling_takes_the_context_it_was_trained_with() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert mixer(rope_scaling=scaling).rope == RopeSpec(100000.0, 64, "llama3", 8.0, 1.0, 4.0, 8192)
    assert mixer(rope_scaling=scaling | {"original_max_position_embeddings": 512}).rope.original_context == 512


def test_rotary_buffers_of_old_checkpoints_are_left_out() -> None:
    spec = llama.spec(CONFIG)
    names = ["model.embed_tokens.weight", "model.norm.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"]
    for index in range(2):
        layer = f"model.layers.{index}."
        names += [f"{layer}{n}.weight" for n in ("input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj",
                                                 "mlp.down_proj", *(f"self_attn.{p}_proj" for p in "qkvo"))]
    found = llama.weights(spec, names)
    assert [sources for _, sources in found.left_out] == [("model.layers.0.self_attn.rotary_emb.inv_freq",)]
