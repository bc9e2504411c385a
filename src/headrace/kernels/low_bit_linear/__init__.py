"""The product of activations and a weight matrix of 4 bits in groups, or of 8 bits with one scale a row."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.low_bit_linear import cuda, reference


def low_bit_linear(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None = None, *, tiled: bool = False, gated: bool = False
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
    if cuda.suits(x, packed, scale, tiled):
        return cuda.low_bit_linear(x, packed, scale, zero, gated=gated)
    return reference.low_bit_linear(x, packed, scale, zero, tiled=tiled, gated=gated)
