"""The norm at the end of Gated DeltaNet: RMS norm of each head, then a silu gate."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.gated_rms_norm import reference


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x, gate [T, H, D], weight [D] -> weight * x / sqrt(mean(x^2) + eps) * silu(gate), as x in shape and type.

    The norm comes before the gate, and the weight is taken as it is (facts: Qwen3.5 linear_attn.norm).
    """
    if runs_triton(x):
        from headrace.kernels.gated_rms_norm import triton

        return triton.gated_rms_norm(x, gate, weight, eps)
    return reference.gated_rms_norm(x, gate, weight, eps)
