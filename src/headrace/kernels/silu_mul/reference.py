"""The definition of silu_mul in plain PyTorch."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import silu

from headrace.kernels.precision import accumulation_dtype


def silu_mul(gate_up: Tensor) -> Tensor:
    wide = accumulation_dtype(gate_up.dtype)
    gate, up = gate_up.to(wide).chunk(2, -1)
    return silu(gate).mul_(up).to(gate_up.dtype)
