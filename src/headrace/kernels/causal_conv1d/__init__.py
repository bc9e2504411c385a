"""The short causal convolution in front of Gated DeltaNet, over packed rows with tails in slots."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.causal_conv1d import reference
from headrace.kernels.dispatch import runs_triton
from headrace.kernels.rows import PackedRows


def causal_conv1d(x: Tensor, weight: Tensor, tails: Tensor, slots: Tensor, rows: PackedRows) -> Tensor:
    """x [T, C], weight [C, W] -> silu(y) with y_t,c = sum_w weight[c, w] x_{t - W + 1 + w, c}, [T, C] as x.

    Depthwise, without bias. Inputs before a row's first token are its tail tails[slots[r]] ([slots, W - 1, C], oldest
    first), which is then replaced by the row's last W - 1 inputs, in the pool's type. slots [R] int64, distinct.
    """
    if runs_triton(x):
        from headrace.kernels.causal_conv1d import triton

        return triton.causal_conv1d(x, weight, tails, slots, rows)
    return reference.causal_conv1d(x, weight, tails, slots, rows)
