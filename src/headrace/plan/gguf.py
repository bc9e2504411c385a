"""A GGUF file as a checkpoint: tensors by their Hugging Face names, with the sizes that their types give them.

Architectures llama and qwen3. llama.cpp keeps the rows of a llama's q and k (not of a qwen3's) in another order: rotary
pairs are (2i, 2i + 1) of a head instead of (i, i + half). `Checkpoint.permuted` names those tensors.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path

from headrace.errors import CheckpointError
from headrace.plan.contents import FLOAT_DTYPES, Checkpoint, TensorHeader
from headrace.plan.gguf_config import config_from, eos_ids
from headrace.plan.gguf_file import GgufHeader, GgufTensor, read_gguf_header

_ROPE_FREQS = "rope_freqs.weight"
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_PERMUTED = re.compile(r"model\.layers\.\d+\.self_attn\.[qk]_proj\.(weight|bias)")


def open_gguf(path: Path) -> Checkpoint:
    """The checkpoint in file `path`. Raises CheckpointError naming the file, and the metadata key or tensor at fault."""
    header = read_gguf_header(path)
    stored = _tensor_headers(header)
    rope_freqs = stored.pop(_ROPE_FREQS, None)
    config = config_from(header, _float32_values(rope_freqs) if rope_freqs else None)
    tensors = {_hf_name(path, name): tensor for name, tensor in stored.items()}
    permuted = (name for name in tensors if config["model_type"] == "llama" and _PERMUTED.fullmatch(name))
    return Checkpoint(path, "gguf", config, tensors, eos_ids(header), frozenset(permuted))


def _hf_name(path: Path, name: str) -> str:
    block = _BLOCK.fullmatch(name)
    if block and block[2] in _LAYER:
        return f"model.layers.{block[1]}.{_LAYER[block[2]]}.{block[3]}"
    if name not in _TOP:
        raise CheckpointError(f"{path} holds the unknown tensor {name!r}")
    return _TOP[name]


def _tensor_headers(header: GgufHeader) -> dict[str, TensorHeader]:
    types = _types(header.path)
    tensors = {name: _tensor_header(header.path, name, tensor, types) for name, tensor in header.tensors.items()}
    position, previous = 0, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].offset):
        if tensor.offset < position:
            raise CheckpointError(f"{header.path}: tensors {previous!r} and {name!r} overlap")
        position, previous = tensor.offset + tensor.nbytes, name
        if position > header.size_bytes:
            raise CheckpointError(
                f"{header.path} is truncated: it has {header.size_bytes} bytes, tensor {name!r} ends at {position}"
            )
    return tensors


def _tensor_header(path: Path, name: str, tensor: GgufTensor, types: Mapping[int, tuple[str, int, int]]) -> TensorHeader:
    if tensor.type_id not in types:
        raise CheckpointError(f"{path}: tensor {name!r} has the type {tensor.type_id}, which cannot be read")
    dtype, block_elements, block_bytes = types[tensor.type_id]
    if not tensor.shape or tensor.shape[-1] % block_elements:
        raise CheckpointError(f"{path}: tensor {name!r} is {list(tensor.shape)}, not in blocks of {block_elements} ({dtype})")
    return TensorHeader(path, dtype, tensor.shape, tensor.offset, prod(tensor.shape) // block_elements * block_bytes)


def _types(path: Path) -> dict[int, tuple[str, int, int]]:
    """The ggml types that can be turned into numbers: id -> name, elements in a block, bytes of a block."""
    try:
        import numpy as np
        from gguf.constants import GGML_QUANT_SIZES
        from gguf.quants import dequantize
    except ImportError:
        raise CheckpointError(f"{path}: reading a GGUF file needs the package gguf: pip install gguf") from None
    types: dict[int, tuple[str, int, int]] = {}
    for ggml_type, (block_elements, block_bytes) in GGML_QUANT_SIZES.items():
        if ggml_type.name not in FLOAT_DTYPES:
            try:
                dequantize(np.zeros((1, block_bytes), np.uint8), ggml_type)
            except NotImplementedError:
                continue
        types[int(ggml_type)] = (ggml_type.name, block_elements, block_bytes)
    return types


def _float32_values(tensor: TensorHeader) -> tuple[float, ...]:
    if tensor.dtype != "F32":
        raise CheckpointError(f"{tensor.file}: tensor {_ROPE_FREQS} is {tensor.dtype}, F32 was expected")
    with tensor.file.open("rb") as file:
        file.seek(tensor.offset)
        return struct.unpack(f"<{prod(tensor.shape)}f", file.read(tensor.nbytes))
