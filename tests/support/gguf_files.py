"""Small GGUF files, written from a transformers model with the gguf package's own writer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tests.support.tiny import checkpoint_tensors
from torch import nn

_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def write_gguf(
    path: Path,
    model: nn.Module,
    *,
    quant: GGMLQuantizationType = GGMLQuantizationType.F32,
    metadata: Mapping[str, Any] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    architecture: str | None = None,
) -> Path:
    """Write a llama or qwen3 `model` as llama.cpp's converter would: names, metadata, and the row order of a llama's q and k.

    quant: the type of matrices; vectors are F32. metadata: keys that replace or add to the usual ones, None leaves one out.
    extra: tensors to add. architecture: another general.architecture than the model's own.
    """
    config = model.config  # type: ignore[attr-defined]
    writer = GGUFWriter(path, architecture or config.model_type)
    _write_metadata(writer, {**_metadata(config), **(metadata or {})})
    for name, tensor in checkpoint_tensors(model).items():
        values = tensor.numpy()
        if config.model_type == "llama" and (".q_proj." in name or ".k_proj." in name):
            values = permuted(values, config.head_dim)
        _write_tensor(writer, _gguf_name(name), values, quant if values.ndim > 1 else GGMLQuantizationType.F32)
    for name, values in (extra or {}).items():
        _write_tensor(writer, name, values, GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permuted(values: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of each head from halves (i, i + half) to neighbours (2i, 2i + 1)."""
    halves = values.reshape(-1, 2, head_dim // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _metadata(config: Any) -> dict[str, Any]:
    name = config.model_type
    tokens = [f"token{i}" for i in range(config.vocab_size)]
    return {
        f"{name}.block_count": config.num_hidden_layers, f"{name}.context_length": config.max_position_embeddings,
        f"{name}.embedding_length": config.hidden_size, f"{name}.feed_forward_length": config.intermediate_size,
        f"{name}.attention.head_count": config.num_attention_heads,
        f"{name}.attention.head_count_kv": config.num_key_value_heads,
        f"{name}.attention.key_length": config.head_dim, f"{name}.attention.value_length": config.head_dim,
        f"{name}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{name}.rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens), "tokenizer.ggml.merges": ["t o"],
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 0,
    }  # fmt: skip


def _write_metadata(writer: GGUFWriter, metadata: Mapping[str, Any]) -> None:
    for key, value in metadata.items():
        match value:
            case None:
                pass
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)


def _write_tensor(writer: GGUFWriter, name: str, values: np.ndarray, quant: GGMLQuantizationType) -> None:
    writer.add_tensor(name, quantize(np.ascontiguousarray(values, dtype=np.float32), quant), raw_dtype=quant)


def _gguf_name(name: str) -> str:
    module, kind = name.rsplit(".", 1)
    if module in _NAMES:
        return f"{_NAMES[module]}.{kind}"
    _, _, index, part = module.split(".", 3)
    return f"blk.{index}.{_NAMES[part]}.{kind}"
