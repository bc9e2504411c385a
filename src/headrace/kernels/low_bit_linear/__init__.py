"""The product of activations and a weight matrix of 4 bits in groups, or of 8 bits with one scale a row."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from headrace.kernels.low_bit_linear import cuda, few, reference
from headrace.kernels.low_bit_linear.around import MOST_OUTPUTS
from headrace.kernels.low_bit_linear.forms import x_rows_of
from headrace.kernels.low_bit_linear.layout import ROWS
from headrace.kernels.rms_norm import Activations, NormWeight, PendingNorm, values_of


def low_bit_linear(
    x: Activations, packed: Tensor, scale: Tensor, zero: Tensor | None = None, *, tiled: bool = False, gated: bool = False
) -> Tensor:
    """x [T, I] times a weight [O, I] of few bits -> x W^T, [T, O] in x's type.

    4 bits: packed int32 [O, I / 8], eight codes c of 0 ... 15 each, the first in the lowest bits; scale [O, I / G], any
    floating type; W[o, i] = (c[o, i] - z) scale[o, i // G] with z = 8, or z from zero, int32 [ceil(O / 8), I / G], eight
    outputs' codes each. 8 bits: packed int8 [O, I], scale [O, 1], W = packed * scale. These are the tensors of checkpoints
    of compressed-tensors. W may be rounded to x's type, once, before it is multiplied. tiled: the same bytes in the order that
    `layout.tile_` puts them in, which the CUDA kernels read; for 16-bit x on an NVIDIA card only then are these used. gated:
    kernels.silu_mul of the product, [T, O / 2]; between the two the product is rounded to x's type, or kept in float32 where
    one kernel does both.
    """
    if not cuda.suits(values_of(x), packed, scale, tiled):
        return reference.low_bit_linear(x, packed, scale, zero, tiled=tiled, gated=gated)
    if len(x) <= cuda.MOST_FEW_ROWS:
        return few.low_bit_linear(x, packed, scale, zero, gated=gated)
    return cuda.low_bit_linear(x, packed, scale, zero, gated=gated)


def form_of(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None = None, *, tiled: bool, gated: bool = False,
    beside: Tensor | None = None,
) -> Hashable:
    """What x's number of rows decides of the kernels that this package launches for it: those of equal answers are the same,
    but for those that are also launched for fewer rows.

    x [T, I]: its numbers do not matter. beside: the weight of low_bit_linear_beside.
    """
    if not cuda.suits(x, packed, scale, tiled):
        return None
    if len(x) <= cuda.MOST_FEW_ROWS:
        return x_rows_of(len(x))
    return cuda.form_of(x, packed, scale, zero, gated=gated, beside=beside)


def low_bit_linear_beside(
    x: Activations, packed: Tensor, scale: Tensor, zero: Tensor | None, weight: Tensor, *, tiled: bool = False
) -> tuple[Tensor, Tensor]:
    """(low_bit_linear(x, packed, scale, zero), x weight^T) for a plain weight [few, I]."""
    if goes_beside(x, packed, scale, weight, tiled=tiled):
        way = few.low_bit_linear_beside if len(x) <= cuda.MOST_FEW_ROWS else cuda.low_bit_linear_beside
        return way(x, packed, scale, zero, weight)
    return reference.low_bit_linear_beside(x, packed, scale, zero, weight, tiled=tiled)


def goes_beside(x: Activations, packed: Tensor, scale: Tensor, weight: Tensor, *, tiled: bool) -> bool:
    """Whether low_bit_linear_beside is one launch."""
    values = values_of(x)
    if not (weight.dtype == values.dtype and fits_beside(weight) and cuda.suits(values, packed, scale, tiled)):
        return False
    return len(x) <= cuda.MOST_FEW_ROWS or (cuda.folds(len(x), values.device) and len(weight) <= cuda.BESIDE_OUTPUTS)


def fits_beside(weight: Tensor) -> bool:
    """Whether a plain weight has a shape for low_bit_linear_beside's one launch."""
    return len(weight) <= MOST_OUTPUTS and len(weight) % ROWS == 0 and weight.is_contiguous()


def low_bit_linear_norm(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, residual: Tensor, norm: NormWeight, *, tiled: bool = False
) -> tuple[PendingNorm, Tensor]:
    """(the norm of total, total) with total = residual + low_bit_linear(x, packed, scale, zero), [T, O] as residual."""
    if folds_norms(x, packed, scale, tiled=tiled):
        if len(x) <= cuda.MOST_FEW_ROWS:
            return few.low_bit_linear_norm(x, packed, scale, zero, residual, norm)
        return cuda.low_bit_linear_norm(x, packed, scale, zero, residual, norm)
    return reference.low_bit_linear_norm(x, packed, scale, zero, residual, norm, tiled=tiled)


def folds_norms(x: Tensor, packed: Tensor, scale: Tensor, *, tiled: bool) -> bool:
    """Whether low_bit_linear_norm is one launch, and products of the norm that it begins cost none for the norm.

    Not in fp16, where what a norm's factors are still to come to may be beyond the range.
    """
    return cuda.suits(x, packed, scale, tiled) and x.dtype == torch.bfloat16 and cuda.folds(len(x), x.device)
