"""The product of activations in 8-bit codes, made here, and a weight matrix of 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from headrace.kernels.eight_bit_linear import cuda, reference


def eight_bit_linear(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None = None, *, codes: torch.dtype, tiled: bool = False,
    gated_inputs: bool = False,
) -> Tensor:
    """x [T, I] times a weight [O, I] of few bits -> q(x) W^T, [T, O] in x's type.

    gated_inputs: x is [T, 2 I], and kernels.silu_mul of it takes its place, rounded to x's type before it becomes codes: what
    two operations, one after the other, compute.

    q(x) is x rounded as kernels.quantise_rows says: codes (int8 or fp8 e4m3) times one scale a token. The weight's tensors, and
    tiled, are those of kernels.low_bit_linear. Sums of products of codes are exact integers, or float32.
    """
    if cuda.suits(x, packed, scale, tiled, gated_inputs=gated_inputs):
        return cuda.eight_bit_linear(x, packed, scale, zero, codes, gated_inputs=gated_inputs)
    return reference.eight_bit_linear(x, packed, scale, zero, codes=codes, tiled=tiled, gated_inputs=gated_inputs)


def form_of(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None = None, *, codes: torch.dtype, tiled: bool
) -> Hashable:
    """What x's number of rows decides of the kernels that are launched for it: those of equal answers are the same.

    x [T, I]: its numbers do not matter.
    """
    return cuda.form_of(x, packed, scale, zero, codes) if cuda.suits(x, packed, scale, tiled) else None
