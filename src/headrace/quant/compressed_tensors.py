"""Checkpoints of compressed-tensors (llm-compressor) with integer weights: formats pack-quantized and int-quantized.

A linear layer X has, in place of X.weight: 4 bits in groups (or one scale a row): X.weight_packed int32 [O, I / 8],
X.weight_scale [O, I / G] and, if not symmetric, X.weight_zero_point int32 [O / 8, I / G]; 8 bits with one scale a row:
X.weight_packed int32 [O, I / 4] (pack-quantized) or X.weight int8 [O, I] (int-quantized), and X.weight_scale [O, 1].
X.weight_shape is implied. Which layers are quantised, and how, is read off the headers; the configuration says what cannot be
served, and whether a layer's inputs are rounded to 8 bits: its config_group's input_activations, int8 or fp8 e4m3 with one
symmetric scale a token, found when the token is there ("dynamic").
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace import quant
from headrace.errors import CheckpointError
from headrace.models.spec import Weight, WeightMap

if TYPE_CHECKING:
    from torch import Tensor

    from headrace.kernels.rms_norm import Activations, NormWeight, PendingNorm

_FORMATS = ("pack-quantized", "int-quantized")
_ACTIVATIONS = {"int": "int8", "float": "float8_e4m3fn"}
_SCALE_TYPES = {"F16": "float16", "BF16": "bfloat16"}  # others become the model's type
_BESIDE = (".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx")


def detect(config: Mapping[str, Any]) -> bool:
    return quant.quantization(config).get("quant_method") == "compressed-tensors"


def plain_names(names: Collection[str]) -> Collection[str]:
    return {_plain(name) for name in names if not name.endswith(_BESIDE)}


def _plain(name: str) -> str:
    return name.removesuffix("_packed") if name.endswith(".weight_packed") else name


def stored(
    weight_map: WeightMap, config: Mapping[str, Any], tensors: Mapping[str, Any]
) -> tuple[WeightMap, Mapping[str, quant.LinearFormat]]:
    """tensors: name -> header (dtype, shape). Raises CheckpointError naming what is not supported."""
    settings = quant.quantization(config)
    _check_config(settings)
    formats: dict[str, LowBit] = {}
    plain: dict[str, str] = {}
    weights: list[Weight] = []
    for weight in weight_map.weights:
        format = _format_of(weight, tensors, settings)
        if format is None:
            plain.setdefault(weight.target.removesuffix(".weight"), weight.source)
            weights.append(weight)
            continue
        path = weight.target.removesuffix(".weight")
        if formats.setdefault(path, format) != format:
            raise CheckpointError(f"tensor '{weight.source}' is quantised unlike others that are served as one matrix with it")
        weights += stored_parts(weight, format, tensors)
    kept = _stored_names(weight_map.kept, tensors)
    unused = {name for names in (weight_map.kept, *(names for _, names in weight_map.left_out))
              for name in _stored_names(names, tensors)}
    for path in formats.keys() & plain.keys():
        raise CheckpointError(f"tensor '{plain[path]}' is plain and others that are served as one matrix with it are quantised")
    shapes = tuple(sorted(name for name in tensors if name.endswith(".weight_shape") and name not in unused))
    left_out = [(reason, _stored_names(names, tensors)) for reason, names in weight_map.left_out]
    if shapes:
        left_out.append(("shapes of packed weights, which are implied", shapes))
    return replace(weight_map, weights=tuple(weights), kept=kept, left_out=tuple(left_out)), formats


def _stored_names(names: Collection[str], tensors: Mapping[str, Any]) -> tuple[str, ...]:
    """The tensors that there are in place of these plain ones."""
    found: list[str] = []
    for name in names:
        parts = (name, *(name.removesuffix(".weight") + part for part in (".weight_packed", *_BESIDE)))
        found += [part for part in parts if part in tensors] if name.endswith(".weight") else [name]
    return tuple(found)


def _check_config(settings: Mapping[str, Any]) -> None:
    groups = settings.get("config_groups") or {}
    for name, group in groups.items():
        format = group.get("format") or settings.get("format")
        if format not in _FORMATS:
            raise _unsupported(f"format {format!r} is not supported yet (only {' and '.join(_FORMATS)})")
        weights = group.get("weights") or {}
        bits, strategy = weights.get("num_bits"), weights.get("strategy")
        if weights.get("type", "int") != "int" or bits not in (4, 8):
            type_ = weights.get("type", "int")
            raise _unsupported(f"{name} has weights of type {type_!r} with {bits} bits; int with 4 or 8 are served")
        if strategy not in ("group", "channel") or (bits == 8 and strategy != "channel"):
            raise _unsupported(f"{name} has {bits}-bit weights with strategy {strategy!r}, which is not supported yet")
        if weights.get("actorder") not in (None, False, "weight", "static"):
            raise _unsupported(f"{name} has actorder {weights['actorder']!r}, which is not supported yet")
        _check_activations(f"{name} field 'input_activations'", group.get("input_activations"))
    sparsity = (settings.get("sparsity_config") or {}).get("format", "dense")
    if sparsity != "dense":
        raise _unsupported(f"sparsity_config has format {sparsity!r}; only 'dense' is supported")


def _check_activations(name: str, settings: Mapping[str, Any] | None) -> None:
    if not settings:
        return
    if settings.get("dynamic") is not True:
        raise _unsupported(f"{name} asks for activations with stored scales, which is not supported yet")
    type_, bits, strategy = settings.get("type", "int"), settings.get("num_bits", 8), settings.get("strategy", "token")
    if type_ not in _ACTIVATIONS or bits != 8 or strategy != "token" or not settings.get("symmetric", True):
        symmetric = "symmetric" if settings.get("symmetric", True) else "asymmetric"
        what = f"{symmetric} activations of type {type_!r} with {bits} bits and strategy {strategy!r}"
        raise _unsupported(f"{name} asks for {what}; symmetric int or float with 8 bits and strategy 'token' are served")


def _activations_of(module: str, settings: Mapping[str, Any]) -> str | None:
    """What a layer's inputs are rounded to, by the group that names it most closely: by name, by pattern, or by its class."""
    groups = (settings.get("config_groups") or {}).values()
    targets = [(target, group) for group in groups for target in group.get("targets") or ()]
    by_name = [group for target, group in targets if target == module]
    by_pattern = [group for target, group in targets if target.startswith("re:") and re.match(target[3:], module)]
    by_class = [group for target, group in targets if target == "Linear"]
    closest: Mapping[str, Any] = next(iter(by_name + by_pattern + by_class), {})
    found = closest.get("input_activations")
    return _ACTIVATIONS[found.get("type", "int")] if found else None


def _unsupported(what: str) -> CheckpointError:
    return CheckpointError(f"config field 'quantization_config': {what}")


def _format_of(weight: Weight, tensors: Mapping[str, Any], settings: Mapping[str, Any]) -> LowBit | None:
    """How the checkpoint keeps a matrix, told by its tensors; None if plain."""
    base = weight.source.removesuffix(".weight")
    scale, packed = tensors.get(f"{base}.weight_scale"), tensors.get(f"{base}.weight_packed")
    if scale is None and packed is None:
        return None
    if scale is None:
        raise CheckpointError(f"tensor '{base}.weight_scale' is missing from the checkpoint")
    if f"{base}.weight_g_idx" in tensors:
        raise CheckpointError(f"tensor '{base}.weight_g_idx': reordered groups are not supported yet")
    if weight.target == "embedding.weight" or len(weight.shape) != 2:
        raise CheckpointError(f"tensor '{base}' is quantised, which is supported for linear layers only")
    rows, inputs = weight.shape
    bits = 8 if packed is None else 32 * packed.shape[-1] // inputs
    zeros = f"{base}.weight_zero_point" in tensors
    groups = scale.shape[-1] if len(scale.shape) == 2 else 0
    if bits not in (4, 8) or inputs % 8 or not groups or inputs % groups or (bits == 8 and (groups != 1 or zeros)):
        shape = list(scale.shape)
        raise CheckpointError(f"tensor '{base}': {bits} bits with scales {shape} for {inputs} inputs are not supported")
    if zeros and rows % 8:
        raise CheckpointError(f"tensor '{base}.weight_zero_point': {rows} rows are not whole words of eight zero points")
    group = inputs // groups if groups > 1 or bits == 4 else 0
    return LowBit(bits, group, zeros, _SCALE_TYPES.get(scale.dtype), _activations_of(base, settings))


def stored_parts(weight: Weight, format: LowBit, tensors: Mapping[str, Any]) -> Iterator[Weight]:
    """The tensors in place of one plain matrix, each to its rows of a parameter."""
    base, path, (rows, inputs) = weight.source.removesuffix(".weight"), weight.target.removesuffix(".weight"), weight.shape
    packed, scale, zero = (f".weight_{part}" for part in ("packed", "scale", "zero_point"))
    offset, groups = weight.offset, inputs // format.group if format.group else 1
    if format.bits == 4:
        yield Weight(base + packed, path + packed, (rows, inputs // 8), offset, dtype="int32")
    elif base + packed in tensors:
        yield Weight(base + packed, path + packed, (rows, inputs // 4), offset, "offset_bytes", dtype="int8")
    else:
        yield Weight(weight.source, path + packed, (rows, inputs), offset, dtype="int8")
    yield Weight(base + scale, path + scale, (rows, groups), offset, dtype=format.scale)
    if format.zeros:
        yield Weight(base + zero, path + zero, (rows // 8, groups), offset // 8, dtype="int32")


@dataclass(frozen=True, slots=True)
class LowBit:
    """Integer weights of 4 bits in groups of inputs, or of 8 bits with one scale a row (group 0).

    zeros: each group has a zero point. scale: the type of the scales, None the model's. activations: the type of the codes that
    inputs are rounded to, None for inputs as they are. The arithmetic is that of kernels.low_bit_linear and eight_bit_linear.
    """

    bits: int
    group: int
    zeros: bool = False
    scale: str | None = None
    activations: str | None = None

    def tensors(self, outputs: int, inputs: int) -> Mapping[str, quant.Stored]:
        groups = inputs // self.group if self.group else 1
        found: dict[str, quant.Stored] = {
            "weight_packed": ((outputs, inputs // 8), "int32") if self.bits == 4 else ((outputs, inputs), "int8"),
            "weight_scale": ((outputs, groups), self.scale),
        }
        if self.zeros:
            found["weight_zero_point"] = ((outputs // 8, groups), "int32")
        return found

    def prepare(self, parameters: Mapping[str, Tensor], inputs: int) -> bool:
        """Tiles the weights for the CUDA kernels where they will be used."""
        from headrace.kernels.low_bit_linear.layout import can_tile, tile_

        packed, scale, zero = _parameters(parameters)
        fits = can_tile(len(packed), inputs, self.group or inputs, zeros=self.zeros)
        if not (fits and packed.is_cuda and scale.itemsize == 2):
            return False
        tile_(packed, scale, zero)
        return True

    def apply(self, parameters: Mapping[str, Tensor], x: Activations, *, prepared: bool) -> Tensor:
        from headrace.kernels.low_bit_linear import low_bit_linear
        from headrace.kernels.rms_norm import finished

        if self.activations is None:
            return low_bit_linear(x, *_parameters(parameters), tiled=prepared)
        return self._on_codes(parameters, finished(x), prepared=prepared, gated_inputs=False)

    def form_of(
        self, parameters: Mapping[str, Tensor], x: Tensor, *, prepared: bool, gated: bool = False, beside: Tensor | None = None
    ) -> Hashable:
        import torch

        from headrace.kernels import eight_bit_linear, low_bit_linear

        weights = _parameters(parameters)
        if self.activations is not None:
            return eight_bit_linear.form_of(x, *weights, codes=getattr(torch, self.activations), tiled=prepared)
        return low_bit_linear.form_of(x, *weights, tiled=prepared, gated=gated, beside=beside)

    def apply_beside(
        self, parameters: Mapping[str, Tensor], x: Activations, weight: Tensor, *, prepared: bool
    ) -> tuple[Tensor, Tensor] | None:
        from headrace.kernels.low_bit_linear import goes_beside, low_bit_linear_beside

        packed, scale, zero = _parameters(parameters)
        if self.activations is not None or not goes_beside(x, packed, scale, weight, tiled=prepared):
            return None
        return low_bit_linear_beside(x, packed, scale, zero, weight, tiled=prepared)

    def apply_norm(
        self, parameters: Mapping[str, Tensor], x: Tensor, residual: Tensor, norm: NormWeight, *, prepared: bool
    ) -> tuple[PendingNorm, Tensor] | None:
        from headrace.kernels.low_bit_linear import folds_norms, low_bit_linear_norm

        packed, scale, zero = _parameters(parameters)
        if self.activations is not None or not folds_norms(x, packed, scale, tiled=prepared):
            return None
        return low_bit_linear_norm(x, packed, scale, zero, residual, norm, tiled=prepared)

    def reads_pending(self, *, prepared: bool, beside: Tensor | None = None) -> bool:
        from headrace.kernels.low_bit_linear import fits_beside

        return prepared and self.activations is None and (beside is None or fits_beside(beside))

    def apply_gated(self, parameters: Mapping[str, Tensor], x: Activations, *, prepared: bool) -> Tensor:
        from headrace.kernels.low_bit_linear import low_bit_linear
        from headrace.kernels.silu_mul import silu_mul

        if self.activations is None:
            return low_bit_linear(x, *_parameters(parameters), tiled=prepared, gated=True)
        return silu_mul(self.apply(parameters, x, prepared=prepared))

    @property
    def rounds_inputs(self) -> bool:
        return self.activations is not None

    def apply_after_gate(self, parameters: Mapping[str, Tensor], gate_up: Tensor, *, prepared: bool) -> Tensor:
        from headrace.kernels.silu_mul import silu_mul

        if self.activations is None:
            return self.apply(parameters, silu_mul(gate_up), prepared=prepared)
        return self._on_codes(parameters, gate_up, prepared=prepared, gated_inputs=True)

    def _on_codes(self, parameters: Mapping[str, Tensor], x: Tensor, *, prepared: bool, gated_inputs: bool) -> Tensor:
        import torch

        from headrace.kernels.eight_bit_linear import eight_bit_linear

        codes = getattr(torch, str(self.activations))
        return eight_bit_linear(x, *_parameters(parameters), codes=codes, tiled=prepared, gated_inputs=gated_inputs)


def _parameters(parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor | None]:
    return parameters["weight_packed"], parameters["weight_scale"], parameters.get("weight_zero_point")
