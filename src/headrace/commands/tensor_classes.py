"""A checkpoint's tensors grouped by what they are for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from headrace.models.spec import AttentionSpec, ModelSpec, Weight
from headrace.plan.checkpoint import Model
from headrace.plan.contents import TensorHeader

Use = Literal["served", "for drafts", "left out"]


@dataclass(frozen=True, slots=True)
class TensorClass:
    """Tensors of one purpose. parameters: elements, also of quantised tensors, without what only scales them. dtypes:
    parameters of each stored type.
    """

    name: str
    use: Use
    tensors: int
    parameters: int
    bytes: int
    dtypes: dict[str, int]


def tensor_classes(model: Model) -> list[TensorClass]:
    """Every tensor of the checkpoint is in exactly one class; what the decoder needs comes first, as it is used."""
    members: dict[tuple[str, Use], list[tuple[TensorHeader, int]]] = defaultdict(list)
    for name, use, source, factor in _assignments(model):
        header = model.checkpoint.tensors[source]
        members[name, use].append((header, factor * prod(header.shape)))
    return [_sum(name, use, tensors) for (name, use), tensors in members.items()]


def _assignments(model: Model) -> Iterator[tuple[str, Use, str, int]]:
    """Purpose, use, tensor, and how many parameters an element of it stands for."""
    for weight in model.weight_map.weights:
        yield _purpose(model.spec, weight.target), "served", weight.source, _parameters_an_element(weight)
    for source in model.weight_map.kept:
        yield "multi-token prediction", "for drafts", source, 1
    for reason, sources in model.weight_map.left_out:
        for source in sources:
            yield reason, "left out", source, 1


def _parameters_an_element(weight: Weight) -> int:
    if weight.target.endswith((".weight_scale", ".weight_zero_point")):
        return 0
    if weight.transform == "offset_bytes":
        return 4
    return 8 if weight.dtype == "int32" else 1


def _purpose(spec: ModelSpec, target: str) -> str:
    """What a decoder parameter ("layers.3.mixer.qkv.weight") is for."""
    parts = target.split(".")
    if any("norm" in part for part in parts):
        return "norms"
    if parts[0] != "layers":
        return parts[0]
    if parts[2] != "mixer":
        return parts[2]
    return "attention" if isinstance(spec.layers[int(parts[1])].mixer, AttentionSpec) else "gated delta"


def _sum(name: str, use: Use, tensors: Iterable[tuple[TensorHeader, int]]) -> TensorClass:
    tensors = list(tensors)
    dtypes: dict[str, int] = defaultdict(int)
    for tensor, parameters in tensors:
        dtypes[tensor.dtype] += parameters
    return TensorClass(name, use, len(tensors), sum(dtypes.values()), sum(t.nbytes for t, _ in tensors), dict(dtypes))
