"""The definition of rms_norm in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.precision import accumulation_dtype


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    wide = accumulation_dtype(x.dtype)
    scale = weight.to(wide)
    if offset:
        scale = scale + offset
    total = x.to(wide)
    length = torch.linalg.vector_norm(total, dim=-1, keepdim=True)  # fewer calls than torch.rms_norm makes on a CPU
    return (total * torch.rsqrt(length * length / x.shape[-1] + eps) * scale).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps, offset), total
