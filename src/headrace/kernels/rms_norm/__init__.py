"""Root-mean-square norm, alone or after a residual addition."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.rms_norm import reference
from headrace.kernels.rms_norm.pending import Activations, NormWeight, PendingNorm, finished, values_of

__all__ = ["Activations", "NormWeight", "PendingNorm", "add_rms_norm", "finished", "rms_norm", "values_of"]


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """x [..., D], weight [D] -> x / sqrt(mean(x^2) + eps) * (offset + weight), as x in shape and type.

    offset is 1 for models that store weights about zero (Qwen3.5), else 0.
    """
    if runs_triton(x):
        from headrace.kernels.rms_norm import triton

        return triton.rms_norm(x, weight, eps, offset)
    return reference.rms_norm(x, weight, eps, offset)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """x, residual [..., D] -> (rms_norm(x + residual), x + residual)."""
    if runs_triton(x):
        from headrace.kernels.rms_norm import triton

        return triton.add_rms_norm(x, residual, weight, eps, offset)
    return reference.add_rms_norm(x, residual, weight, eps, offset)
