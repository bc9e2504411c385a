"""RMS norm as a layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.kernels.precision import accumulation_dtype
from headrace.kernels.rms_norm import Activations, NormWeight, add_rms_norm, rms_norm
from headrace.layers.linear import Linear, empty_parameter


class RmsNorm(nn.Module):
    """x [..., size] -> x / rms(x) * (offset + weight). The weight is kept in float32 or better.

    pending: whether all that reads this norm behind a linear layer takes it as a PendingNorm; told once the weights are there.
    """

    def __init__(self, size: int, *, eps: float, offset: float = 0.0, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.eps, self.offset = eps, offset
        self.weight = empty_parameter((size,), accumulation_dtype(dtype), device)
        self.pending = False

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps, self.offset)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(norm(x + residual), x + residual)."""
        return add_rms_norm(x, residual, self.weight, self.eps, self.offset)

    def behind(self, linear: Linear, x: Tensor, residual: Tensor) -> tuple[Activations, Tensor]:
        """(norm(total), total) with total = residual + linear(x)."""
        norm = NormWeight(self.weight, self.eps, self.offset)
        found = linear.with_norm(x, residual, norm) if self.pending else None
        return self.add(linear(x), residual) if found is None else found
