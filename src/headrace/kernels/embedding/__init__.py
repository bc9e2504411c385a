"""Rows of an embedding table."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.embedding import reference


def embedding(tokens: Tensor, weight: Tensor) -> Tensor:
    """tokens [T] int64 below V, weight [V, D] -> weight[tokens], [T, D]."""
    if runs_triton(weight):
        from headrace.kernels.embedding import triton

        return triton.embedding(tokens, weight)
    return reference.embedding(tokens, weight)
