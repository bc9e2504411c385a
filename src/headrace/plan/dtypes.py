"""Which number types an engine computes and stores in: what `auto` means for a model on a device, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.cache.layout import CacheGroup
from headrace.config import Dtype, EngineConfig, KvDtype
from headrace.errors import ConfigError
from headrace.hardware import Hardware

_COMPUTE: dict[str, Dtype] = {"float64": "float64", "float32": "float32", "float16": "float16", "bfloat16": "bfloat16"}
_ITEMSIZE: dict[KvDtype, int] = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "int8": 1}
SCALE_BYTES = 2
"""Of the fp16 scale that a key or value of one token and head has in 8 bits."""
STORED_BYTES: Mapping[str, int] = {
    "int32": 4, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, **{str(name): _ITEMSIZE[name] for name in _COMPUTE.values()}
}
"""Bytes of one element of the types that a parameter may have whatever the model computes in."""
_SHORT: dict[str, Dtype] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_SHORT_KV: dict[str, KvDtype] = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3fn", "int8": "int8"}


@dataclass(frozen=True, slots=True)
class Dtypes:
    """Types of weights and activations, of cached keys and values, and of recurrent states. notes: a line for each choice."""

    compute: Dtype
    kv: KvDtype
    state: Dtype
    notes: tuple[str, ...] = ()


def itemsize(dtype: KvDtype) -> int:
    """Bytes of one element."""
    return _ITEMSIZE[dtype]


def has_scales(kv: KvDtype) -> bool:
    """Whether keys and values are 8-bit codes with a scale for each token and head."""
    return _ITEMSIZE[kv] == 1


def ring_type(compute: Dtype) -> Dtype:
    """Of the drafts' keys and deltas: float16 where activations have 16 bits, see kernels.gated_delta_verify.Ring."""
    return "float16" if _ITEMSIZE[compute] == 2 else compute


def token_bytes(group: CacheGroup, kv: KvDtype) -> int:
    """Bytes of one token's keys and values over a cache group's layers."""
    return group.token_elements * _ITEMSIZE[kv] + (group.token_vectors * SCALE_BYTES if has_scales(kv) else 0)


def resolve_dtypes(config: EngineConfig, hardware: Hardware, checkpoint_dtype: str) -> Dtypes:
    """What `auto` becomes. `checkpoint_dtype` is what most of the checkpoint's weights are stored in, a torch name.

    Raises ConfigError for bfloat16 on a card without it.
    """
    compute, why = _compute(config, hardware, checkpoint_dtype)
    kv: KvDtype = compute if config.kv_dtype == "auto" else _SHORT_KV[config.kv_dtype]
    notes = (f"dtype: {compute}, {why}", f"kv-dtype: {kv}", f"state-dtype: {_state(config, compute)}")
    for used in (compute, kv):
        if used == "bfloat16" and not hardware.has_bfloat16:
            raise ConfigError(f"the {hardware.name} has no bfloat16: use --dtype float16 and --kv-dtype fp16")
    return Dtypes(compute, kv, _state(config, compute), notes)


def _compute(config: EngineConfig, hardware: Hardware, checkpoint_dtype: str) -> tuple[Dtype, str]:
    if config.dtype != "auto":
        return _COMPUTE[config.dtype], "as asked for"
    if hardware.kind == "cpu":
        return "float32", "the type that CPUs compute fastest"
    if checkpoint_dtype == "float16" or not hardware.has_bfloat16:
        return "float16", "the checkpoint's type" if checkpoint_dtype == "float16" else "the card has no bfloat16"
    return "bfloat16", "the checkpoint's type" if checkpoint_dtype == "bfloat16" else f"the checkpoint is {checkpoint_dtype}"


def _state(config: EngineConfig, compute: Dtype) -> Dtype:
    if config.state_dtype != "auto":
        return _SHORT[config.state_dtype]
    return compute if compute in ("float32", "float64") else "float16"
