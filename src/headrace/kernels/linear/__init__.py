"""The product of activations and a plain weight matrix."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor

from headrace.kernels.linear import cuda, onednn, reference
from headrace.kernels.low_bit_linear.around import x_rows_of
from headrace.kernels.rms_norm import Activations, finished


def linear(x: Activations, weight: Tensor) -> Tensor:
    """x [T, I], weight [O, I], one type -> x weight^T, [T, O] in that type."""
    if cuda.suits(x, weight):
        return cuda.linear(x, weight)
    x = finished(x)
    if onednn.suits(x):
        return onednn.linear(x, weight)
    return reference.linear(x, weight)


def form_of(x: Tensor, weight: Tensor) -> Hashable:
    """What x's number of rows decides of the kernel that is launched for it: those of equal answers are the same."""
    return x_rows_of(len(x)) if cuda.suits(x, weight) else None
