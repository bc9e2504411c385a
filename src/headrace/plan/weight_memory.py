"""Bytes of the weights on the device. They are asked for by every budget that a plan tries, and remembered."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from headrace.config import Dtype
from headrace.models.spec import ModelSpec, Weight, WeightMap
from headrace.plan.dtypes import STORED_BYTES, itemsize

LOW_BIT_TYPES = ("int32", "int8", "uint8", "float8_e4m3fn")
"""Of weights that are decoded when they are used."""


@lru_cache(maxsize=16)
def weight_bytes(weights: WeightMap, dtype: Dtype) -> int:
    """Bytes of the weights on the device: vectors (norms, decays) are kept in float32 or wider, packed weights and their scales
    as they are stored, the rest in `dtype`.
    """
    return sum(_weight_bytes(weight, dtype) for weight in weights.weights) + widening_bytes(weights, dtype)


@lru_cache(maxsize=16)
def widening_bytes(weights: WeightMap, dtype: Dtype) -> int:
    """What vectors take more because they are kept in float32 or wider."""
    vectors = (weight for weight in weights.weights if weight.dtype is None and len(weight.shape) == 1)
    return sum(weight.shape[0] for weight in vectors) * (max(4, itemsize(dtype)) - itemsize(dtype))


@lru_cache(maxsize=16)
def has_low_bit(weights: WeightMap) -> bool:
    """Whether any weight is decoded when it is used."""
    return any(weight.dtype in LOW_BIT_TYPES for weight in weights.weights)


@lru_cache(maxsize=16)
def packed_layer_types(weights: WeightMap) -> frozenset[str]:
    """In which types the layers' packed weights are stored."""
    layers = (weight for weight in weights.weights if weight.target.startswith("layers."))
    return frozenset(weight.dtype for weight in layers if weight.dtype in LOW_BIT_TYPES)


def has_plain(spec: ModelSpec, weights: WeightMap) -> bool:
    """Whether a library multiplies by a weight that is not packed."""
    plain = (weight.target for weight in weights.weights if weight.dtype is None and len(weight.shape) == 2)
    return spec.tied or any(target != "embedding.weight" for target in plain)


def _weight_bytes(weight: Weight, dtype: Dtype) -> int:
    if weight.dtype is None:
        return prod(weight.shape) * itemsize(dtype)
    return prod(weight.shape) * (4 if weight.transform == "offset_bytes" else STORED_BYTES[weight.dtype])
