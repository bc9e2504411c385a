"""Whole checkpoints of published models by name, headers only: the decoder, the vision tower and the multi-token head.

`plan.shapes` declares what an engine can run with random weights; this adds what a published checkpoint holds beside it, and
formats that are planned before they are served:

- nvfp4 (ModelOpt, all linear layers of the decoder): of X.weight [O, I], weight uint8 [O, I / 2], weight_scale fp8 [O, I / 16],
  weight_scale_2 and input_scale float32. The head, the embedding and what predicts decays stay bf16.
- fp8 in blocks: the same layers and those of the multi-token head, weight fp8 [O, I], weight_scale_inv bf16 [O / 128, I / 128].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path

from headrace.errors import ConfigError
from headrace.models import declaration_for
from headrace.models.spec import ModelSpec, Weight, WeightMap
from headrace.plan.checkpoint import Checkpoint, Model, TensorHeader
from headrace.plan.mtp import mtp_weights
from headrace.plan.shapes import FORMATS as SERVED_FORMATS
from headrace.plan.shapes import declared_model, shape

PLANNED_FORMATS = ("nvfp4", "fp8")
FORMATS = (*SERVED_FORMATS, *PLANNED_FORMATS)
"""Weight formats that a published model may be planned in."""
_VISION = {"depth": 27, "hidden": 1152, "inner": 4304, "patch": 3 * 2 * 16 * 16, "positions": 2304, "merged": 4}
"""Of Qwen3.8-27B: blocks, width, inner width, numbers in a patch, positions, patches that become one token."""
_VISION_TOWERS = {"qwen3.8-27b": _VISION}
_STORED = {"uint8": ("U8", 1), "float8_e4m3fn": ("F8_E4M3", 1), "float32": ("F32", 4), "bfloat16": ("BF16", 2)}
_BLOCK = 128
_GROUP = 16


def published_model(text: str) -> Model:
    """What the published checkpoint "NAME" or "NAME:FORMAT" holds. Raises ConfigError for a name or format there is not."""
    name, colon, given = text.partition(":")
    format = given if colon else FORMATS[0]
    if format not in FORMATS:
        raise ConfigError(f"there is no weight format {format!r}; there are {', '.join(FORMATS)}")
    model = _planned(name, format) if format in PLANNED_FORMATS else declared_model(text)
    path = model.checkpoint.path
    plain = mtp_weights(model.spec, None).weights if model.spec.mtp_layers else ()
    head = tuple(part for weight in plain for part in _mtp_stored(weight, format))
    tower = tuple(Weight(source, "", size) for source, size in _tower(name, model.spec.hidden))
    tensors = {**model.checkpoint.tensors, **{weight.source: _header(path, weight) for weight in (*head, *tower)}}
    left_out = (("vision tower", tuple(weight.source for weight in tower)),) if tower else ()
    weight_map = replace(model.weight_map, kept=tuple(weight.source for weight in head), left_out=left_out)
    return replace(model, checkpoint=replace(model.checkpoint, tensors=tensors), weight_map=weight_map)


def parameters(model: Model) -> int:
    """Numbers that a published model has in all, whatever they are stored as: declared in bf16, each is an element."""
    return sum(prod(tensor.shape) for tensor in model.checkpoint.tensors.values())


def _planned(name: str, format: str) -> Model:
    config = shape(name)
    declaration = declaration_for(config["model_type"])
    spec: ModelSpec = declaration.spec(config)
    plain: WeightMap = declaration.weights(spec, None)
    parts = _nvfp4 if format == "nvfp4" else _fp8
    weights = tuple(part for weight in plain.weights for part in (parts(weight) if _is_packed(weight) else (weight,)))
    path = Path(name)
    tensors = {weight.source: _header(path, weight) for weight in weights}
    return Model(Checkpoint(path, "hf", config, tensors), spec, replace(plain, weights=weights))


def _is_packed(weight: Weight) -> bool:
    """Linear layers of a decoder's layers, but for the small one of decays and learning rates."""
    linear = len(weight.shape) == 2 and weight.target.startswith("layer") and weight.target.endswith(".weight")
    return linear and not weight.target.endswith(".ab.weight")


def _nvfp4(weight: Weight) -> Iterator[Weight]:
    rows, inputs = weight.shape
    yield _part(weight, "weight", (rows, inputs // 2), "uint8")
    yield _part(weight, "weight_scale", (rows, inputs // _GROUP), "float8_e4m3fn")
    for name in ("weight_scale_2", "input_scale"):
        yield _part(weight, name, (1,), "float32")


def _fp8(weight: Weight) -> Iterator[Weight]:
    rows, inputs = weight.shape
    yield _part(weight, "weight", weight.shape, "float8_e4m3fn")
    yield _part(weight, "weight_scale_inv", (-(-rows // _BLOCK), -(-inputs // _BLOCK)), "bfloat16")


def _part(weight: Weight, name: str, size: tuple[int, ...], dtype: str) -> Weight:
    source, target = (text.removesuffix("weight") + name for text in (weight.source, weight.target))
    return replace(weight, source=source, target=target, shape=size, dtype=dtype)


def _header(path: Path, weight: Weight) -> TensorHeader:
    dtype, size = _STORED[weight.dtype or "bfloat16"]
    return TensorHeader(path, dtype, weight.shape, 0, size * prod(weight.shape))


def _mtp_stored(weight: Weight, format: str) -> Iterator[Weight]:
    """The head is bf16 but in fp8 checkpoints."""
    if format == "fp8" and _is_packed(weight):
        yield from _fp8(weight)
    else:
        yield weight


def _tower(name: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensors of the vision tower, and their shapes."""
    if name not in _VISION_TOWERS:
        return
    tower = _VISION_TOWERS[name]
    width, inner, merged = tower["hidden"], tower["inner"], tower["merged"] * tower["hidden"]
    yield from _linear("patch_embed.proj", width, tower["patch"])
    yield "model.visual.pos_embed.weight", (tower["positions"], width)
    for block in range(tower["depth"]):
        for layer, outputs, inputs in (("attn.qkv", 3 * width, width), ("attn.proj", width, width),
                                       ("mlp.linear_fc1", inner, width), ("mlp.linear_fc2", width, inner)):
            yield from _linear(f"blocks.{block}.{layer}", outputs, inputs)
        for norm in ("norm1", "norm2"):
            yield from _norm(f"blocks.{block}.{norm}", width)
    yield from _norm("merger.norm", width)
    yield from _linear("merger.linear_fc1", merged, merged)
    yield from _linear("merger.linear_fc2", hidden, merged)


def _linear(name: str, outputs: int, inputs: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"model.visual.{name}.weight", (outputs, inputs)
    yield f"model.visual.{name}.bias", (outputs,)


def _norm(name: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"model.visual.{name}.weight", (width,)
    yield f"model.visual.{name}.bias", (width,)
