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
    return torch.rms_norm(x.to(wide), (x.shape[-1],), scale, eps).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps, offset), total
