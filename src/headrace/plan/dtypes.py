"""Which number types an engine computes and stores in: what `auto` means for a model on a device, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.config import Dtype, EngineConfig
from headrace.errors import ConfigError
from headrace.hardware import Hardware

_ITEMSIZE: dict[Dtype, int] = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
STORED_BYTES: Mapping[str, int] = {"int32": 4, "int8": 1, **{str(name): size for name, size in _ITEMSIZE.items()}}
"""Bytes of one element of the types that a parameter may have whatever the model computes in."""
_SHORT: dict[str, Dtype] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True, slots=True)
class Dtypes:
    """Types of weights and activations, of cached keys and values, and of recurrent states. notes: a line for each choice."""

    compute: Dtype
    kv: Dtype
    state: Dtype
    notes: tuple[str, ...] = ()


def itemsize(dtype: Dtype) -> int:
    """Bytes of one element."""
    return _ITEMSIZE[dtype]


def resolve_dtypes(config: EngineConfig, hardware: Hardware, checkpoint_dtype: str) -> Dtypes:
    """What `auto` becomes. `checkpoint_dtype` is what most of the checkpoint's weights are stored in, a torch name.

    Raises ConfigError for bfloat16 on a card without it.
    """
    compute, why = _compute(config, hardware, checkpoint_dtype)
    kv: Dtype = compute if config.kv_dtype == "auto" else _SHORT[config.kv_dtype]
    notes = (f"dtype: {compute}, {why}", f"kv-dtype: {kv}", f"state-dtype: {_state(config, compute)}")
    for used in (compute, kv):
        if used == "bfloat16" and not hardware.has_bfloat16:
            raise ConfigError(f"the {hardware.name} has no bfloat16: use --dtype float16 and --kv-dtype fp16")
    return Dtypes(compute, kv, _state(config, compute), notes)


def _compute(config: EngineConfig, hardware: Hardware, checkpoint_dtype: str) -> tuple[Dtype, str]:
    if config.dtype != "auto":
        chosen: dict[str, Dtype] = {name: name for name in _ITEMSIZE}
        return chosen[config.dtype], "as asked for"
    if hardware.kind == "cpu":
        return "float32", "the type that CPUs compute fastest"
    if checkpoint_dtype == "float16" or not hardware.has_bfloat16:
        return "float16", "the checkpoint's type" if checkpoint_dtype == "float16" else "the card has no bfloat16"
    return "bfloat16", "the checkpoint's type" if checkpoint_dtype == "bfloat16" else f"the checkpoint is {checkpoint_dtype}"


def _state(config: EngineConfig, compute: Dtype) -> Dtype:
    if config.state_dtype != "auto":
        return _SHORT[config.state_dtype]
    return compute if compute in ("float32", "float64") else "float16"
