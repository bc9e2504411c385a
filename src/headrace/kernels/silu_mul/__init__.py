"""The activation of a gated MLP."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.silu_mul import reference


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2 I], the gate first -> silu(gate) * up, [T, I]."""
    if runs_triton(gate_up):
        from headrace.kernels.silu_mul import triton

        return triton.silu_mul(gate_up)
    return reference.silu_mul(gate_up)
