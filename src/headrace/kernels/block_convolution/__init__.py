"""A causal depthwise convolution within blocks of tokens, whose coefficients differ from token to token."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.block_convolution import reference
from headrace.kernels.dispatch import runs_triton


def block_convolution(x: Tensor, base: Tensor, change: Tensor, block: int) -> Tensor:
    """x [N block, D], base [W, D], change [N block, W, G] -> y [N block, D].

    y[t, c] = sum over w of (base[w, c] + change[t, w, c // (D / G)]) x[t - w, c], x of the same block only; sums in float32 or
    better. change may be a part of a larger tensor, as long as its last two dimensions are contiguous.
    """
    if runs_triton(x):
        from headrace.kernels.block_convolution import triton

        return triton.block_convolution(x, base, change, block)
    return reference.block_convolution(x, base, change, block)
