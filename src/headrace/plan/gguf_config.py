"""llama.cpp's metadata turned into the configuration that a Hugging Face directory of the same model would have."""

from __future__ import annotations

from math import pi
from typing import Any, NoReturn

from headrace.errors import CheckpointError
from headrace.plan.gguf_file import GgufArray, GgufHeader

_HYBRIDS = ("qwen3next", "qwen35", "qwen35moe")
_ARCHITECTURES = ("llama", "qwen3")
_UNSUPPORTED = (
    "expert_count", "attention.sliding_window", "attention.scale", "logit_scale", "residual_scale", "embedding_scale"
)  # fmt: skip
_LLAMA3 = (1.0, 4.0, 8192)
"""Low and high frequency factor and original context of every published llama 3 scaling; GGUF keeps only what follows."""


def config_from(header: GgufHeader, rope_divisors: tuple[float, ...] | None) -> dict[str, Any]:
    """The configuration. rope_divisors: the values of the file's rope_freqs.weight, if it has one.

    Raises CheckpointError naming the file and the metadata key for what is missing, malformed or not supported.
    """
    meta = _Metadata(header)
    meta.refuse_unsupported()
    heads, hidden = meta.need("attention.head_count", int), meta.need("embedding_length", int)
    head_dim = _head_dim(meta, hidden // heads)
    return {
        "model_type": meta.architecture,
        "num_hidden_layers": meta.need("block_count", int),
        "hidden_size": hidden,
        "intermediate_size": meta.need("feed_forward_length", int),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.need("attention.head_count_kv", int, heads),
        "head_dim": head_dim,
        "vocab_size": _vocab_size(header),
        "max_position_embeddings": meta.need("context_length", int),
        "rms_norm_eps": meta.need("attention.layer_norm_rms_epsilon", float),
        "rope_parameters": _rope(meta, head_dim, rope_divisors),
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": header.metadata.get("tokenizer.ggml.eos_token_id"),
    }


def eos_ids(header: GgufHeader) -> tuple[int, ...]:
    """Tokens that end a message: the metadata's end of sequence, of turn and of message."""
    ids = (header.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom"))
    return tuple(dict.fromkeys(token for token in ids if type(token) is int))


class _Metadata:
    """The metadata of the file's own architecture, by key without the prefix."""

    def __init__(self, header: GgufHeader) -> None:
        self.header = header
        self.architecture = str(header.metadata.get("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        return self.header.metadata.get(f"{self.architecture}.{key}", default)

    def need(self, key: str, kind: type[int] | type[float], default: Any = None) -> Any:
        """A positive number of type `kind`."""
        value = self.get(key, default)
        if type(value) is not kind or not value > 0:
            shown = "missing" if value is None else "an array" if isinstance(value, GgufArray) else repr(value)
            self.refuse(f"{self.architecture}.{key} must be a positive {kind.__name__}, and is {shown}")
        return value

    def refuse(self, reason: str) -> NoReturn:
        raise CheckpointError(f"{self.header.path}: {reason}")

    def refuse_unsupported(self) -> None:
        name = self.architecture
        if name in _HYBRIDS:
            self.refuse(f"general.architecture is {name}: hybrid models are not supported as GGUF, only as safetensors")
        if name not in _ARCHITECTURES:
            self.refuse(f"general.architecture is {name!r}; supported as GGUF are {' and '.join(_ARCHITECTURES)}")
        if self.header.metadata.get("split.count", 1) != 1:
            self.refuse("split.count says that it is a part of a split model; join the parts with llama-gguf-split --merge")
        if not isinstance(self.header.metadata.get("tokenizer.ggml.tokens"), GgufArray):
            self.refuse("tokenizer.ggml.tokens is missing: headrace needs the tokenizer to turn text into tokens")
        for key in _UNSUPPORTED:
            if self.get(key):
                self.refuse(f"{name}.{key} is {self.get(key)!r}, which is not supported")


def _head_dim(meta: _Metadata, default: int) -> int:
    head_dim = meta.need("attention.key_length", int, default)
    for key in ("attention.value_length", "rope.dimension_count"):
        if meta.get(key, head_dim) != head_dim:
            meta.refuse(f"{meta.architecture}.{key} is {meta.get(key)!r}, and must equal the head size, {head_dim}")
    return int(head_dim)


def _vocab_size(header: GgufHeader) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{header.path} has no matrix token_embd.weight")
    return embedding.shape[0]


def _rope(meta: _Metadata, head_dim: int, divisors: tuple[float, ...] | None) -> dict[str, Any]:
    theta = meta.need("rope.freq_base", float, 10_000.0)
    scaling = meta.get("rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        meta.refuse(f"{meta.architecture}.rope.scaling.type is {scaling!r}, which is not supported")
    if divisors is not None:
        return _llama3_rope(meta, theta, head_dim, divisors)
    if scaling == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": meta.need("rope.scaling.factor", float)}
    return {"rope_type": "default", "rope_theta": theta}


def _llama3_rope(meta: _Metadata, theta: float, head_dim: int, divisors: tuple[float, ...]) -> dict[str, Any]:
    """The llama 3 scaling that divides the rotary frequencies by `divisors`."""
    low, high, context = _LLAMA3
    factor = round(max(divisors, default=0.0), 4)
    expected = [_llama3_divisor(theta ** (-2 * i / head_dim), factor) for i in range(head_dim // 2)]
    if len(divisors) != len(expected) or any(abs(d - e) > 1e-3 * e for d, e in zip(divisors, expected, strict=True)):
        meta.refuse("tensor rope_freqs.weight is not a rotary scaling of llama 3")
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": context,
    }


def _llama3_divisor(frequency: float, factor: float) -> float:
    """By how much llama 3 slows a rotation: not if it turns `high` times in the original context, by `factor` if it turns
    less than `low` times, and in between to the mean of both speeds, weighted by its number of turns."""
    low, high, context = _LLAMA3
    turns = context * frequency / (2 * pi)
    weight = min(1.0, max(0.0, (turns - low) / (high - low)))
    return 1 / ((1 - weight) / factor + weight)
