"""Opening a checkpoint and recognising its model, from headers alone: no torch, no weights, no memory to speak of.

Every failure is a CheckpointError of one line that names the file or the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.errors import CheckpointError
from headrace.models import declaration_for
from headrace.models.spec import ModelSpec, Weight, WeightMap
from headrace.plan.contents import FLOAT_DTYPES, STORED_DTYPES, Checkpoint, TensorHeader
from headrace.plan.gguf import open_gguf
from headrace.plan.hf_directory import open_directory
from headrace.quant import FORMATS, LinearFormat, format_for

__all__ = ["Checkpoint", "Model", "TensorHeader", "identify", "open_checkpoint"]


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint, what decoder it is for, and where its tensors go.

    formats: how linear layers keep their weights, by their path in the decoder; those that are not named keep plain ones.
    """

    checkpoint: Checkpoint
    spec: ModelSpec
    weight_map: WeightMap
    formats: Mapping[str, LinearFormat] = field(default_factory=dict)


def open_checkpoint(path: Path) -> Checkpoint:
    """Read and check the headers of a Hugging Face directory or a GGUF file."""
    if path.is_dir():
        return open_directory(path)
    if not path.exists():
        raise CheckpointError(f"model {path} does not exist")
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{path} is one file of a model: name its directory")
    return open_gguf(path)


def identify(checkpoint: Checkpoint) -> Model:
    """Find the declaration for the checkpoint's model type and check that the tensors are those it needs."""
    try:
        declaration = declaration_for(checkpoint.config["model_type"])
        format = FORMATS[format_for(checkpoint.config)]
        spec: ModelSpec = declaration.spec(checkpoint.config)
        weight_map: WeightMap = declaration.weights(spec, format.plain_names(checkpoint.tensors.keys()))
        weight_map, formats = format.stored(weight_map, checkpoint.config, checkpoint.tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.path}: {error}") from None  # what knows no files cannot name one
    check_weights(checkpoint, weight_map)
    return Model(checkpoint, spec, _with_row_order(weight_map, checkpoint.permuted), formats)


def check_weights(checkpoint: Checkpoint, weight_map: WeightMap) -> None:
    """Raise CheckpointError for a tensor of another shape than the map says, or of a type that is not loaded."""
    for weight in weight_map.weights:
        _check_weight(checkpoint, weight)


def _check_weight(checkpoint: Checkpoint, weight: Weight) -> None:
    tensor = checkpoint.tensors[weight.source]
    if tensor.shape != weight.shape:
        raise CheckpointError(
            f"{tensor.file}: tensor {weight.source} is {list(tensor.shape)}, the configuration makes it {list(weight.shape)}"
        )
    if checkpoint.kind == "hf" and tensor.dtype not in (FLOAT_DTYPES if weight.dtype is None else STORED_DTYPES):
        raise CheckpointError(f"{tensor.file}: tensor {weight.source} is {tensor.dtype}, which is not a type of plain weights")


def _with_row_order(weight_map: WeightMap, permuted: frozenset[str]) -> WeightMap:
    weights = tuple(
        replace(weight, transform="unpermute_rope") if weight.source in permuted else weight for weight in weight_map.weights
    )
    return replace(weight_map, weights=weights)
