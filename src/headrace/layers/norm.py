"""RMS norm as a layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.kernels.precision import accumulation_dtype
from headrace.kernels.rms_norm import add_rms_norm, rms_norm
from headrace.layers.linear import empty_parameter


class RmsNorm(nn.Module):
    """x [..., size] -> x / rms(x) * (offset + weight). The weight is kept in float32 or better."""

    def __init__(self, size: int, *, eps: float, offset: float = 0.0, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.eps, self.offset = eps, offset
        self.weight = empty_parameter((size,), accumulation_dtype(dtype), device)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps, self.offset)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(norm(x + residual), x + residual)."""
        return add_rms_norm(x, residual, self.weight, self.eps, self.offset)
