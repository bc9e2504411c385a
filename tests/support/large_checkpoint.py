"""A llama of one layer in three shards of 200 MB or more: the embedding, the layer, the head; random bits as bfloat16."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tests.support.safetensors_file import write_safetensors


def write_large_checkpoint(path: Path, hidden: int = 1024) -> None:
    """Write config, tokenizer (an empty one), index and shards into directory `path`. A smaller `hidden` makes it smaller."""
    inner, vocabulary = 32 * hidden, 100 * hidden
    config = {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 1,
        "num_attention_heads": 8, "vocab_size": vocabulary, "hidden_act": "silu",
    }  # fmt: skip
    layer: dict[str, tuple[int, ...]] = {f"self_attn.{name}_proj": (hidden, hidden) for name in "qkvo"}
    layer |= {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}
    layer |= {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    shards: list[dict[str, tuple[int, ...]]] = [
        {"model.embed_tokens": (vocabulary, hidden)},
        {f"model.layers.0.{name}": shape for name, shape in layer.items()},
        {"lm_head": (vocabulary, hidden), "model.norm": (hidden,)},
    ]
    weight_map = {}
    for number, shapes in enumerate(shards):
        generator = torch.Generator().manual_seed(number)
        tensors = {
            f"{name}.weight": torch.randint(-(2**15), 2**15, shape, dtype=torch.int16, generator=generator).view(torch.bfloat16)
            for name, shape in shapes.items()
        }
        write_safetensors(path / f"model-{number}.safetensors", tensors)
        weight_map |= dict.fromkeys(tensors, f"model-{number}.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text("{}")
