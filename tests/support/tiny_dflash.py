"""Tiny random DFlash and DFlash2 drafters, as they are published: config.json and model.safetensors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DFLASH2: Mapping[str, Any] = {"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 6, "selector_top_k": 5}
"""What DFlash2 has beyond DFlash."""


def dflash_config(
    vocab_size: int, hidden: int = 32, *, first_form: bool = False, inner: Mapping[str, Any] | None = None, **changed: Any
) -> dict[str, Any]:
    """config.json of a drafter for a target of these sizes. inner: fields of dflash_config that replace others."""
    own = {"block_size": 4, "mask_token_id": vocab_size - 1, "target_layer_ids": [0, 2], **({} if first_form else DFLASH2)}
    return {
        "model_type": "qwen3", "architectures": ["DFlashDraftModel" if first_form else "DFlash2DraftModel"],
        "hidden_size": hidden, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "vocab_size": vocab_size, "rope_theta": 1e4, "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6, "sliding_window": 24, "layer_types": ["sliding_attention"] * 2, "is_causal": False,
        "dflash_config": {**own, **(inner or {})}, **changed,
    }


def dflash_tensors(config: Mapping[str, Any], seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Random tensors, named and shaped as the published drafter's are."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    own, vocab = config["dflash_config"], config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(own["target_layer_ids"]) * hidden), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        for name, shape in (
            ("input_layernorm.weight", (hidden,)), ("post_attention_layernorm.weight", (hidden,)),
            ("self_attn.q_proj.weight", (queries, hidden)), ("self_attn.k_proj.weight", (keys, hidden)),
            ("self_attn.v_proj.weight", (keys, hidden)), ("self_attn.o_proj.weight", (hidden, queries)),
            ("self_attn.q_norm.weight", (dim,)), ("self_attn.k_norm.weight", (dim,)),
            ("mlp.gate_proj.weight", (inner, hidden)), ("mlp.up_proj.weight", (inner, hidden)),
            ("mlp.down_proj.weight", (hidden, inner)),
        ):
            shapes[f"layers.{layer}.{name}"] = shape
        if taps := own.get("conv_kernel_size"):
            for name in ("attention_conv", "mlp_conv"):
                shapes[f"layers.{layer}.{name}.base_kernel"] = (2, taps, hidden)
                coefficients = 2 * taps * hidden // own["conv_group_size"]
                shapes[f"layers.{layer}.{name}.kernel_projection.weight"] = (coefficients, hidden)
    if rank := own.get("selector_rank"):
        for name in ("predecessor_codebook", "successor_codebook"):
            shapes[f"candidate_selector.{name}"] = (vocab, rank)
        shapes["candidate_selector.hidden_projection.weight"] = (rank, hidden)
    rng = torch.Generator().manual_seed(seed)
    return {name: _drawn(name, shape, rng).to(dtype) for name, shape in shapes.items()}


def _drawn(name: str, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=rng)
    if "norm" in name:
        return 1 + 0.2 * noise
    if "base_kernel" in name or "codebook" in name:
        return noise
    return noise / math.sqrt(shape[-1])


def write_dflash(directory: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """The drafter's directory, created."""
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors), directory / "model.safetensors", metadata={"format": "pt"})
    return directory
