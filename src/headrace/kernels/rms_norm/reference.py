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
    # One call for the sum of squares, and the rest in place: on a CPU each call of a decode step counts.
    squares: Tensor = torch.linalg.vecdot(total, total)[..., None]
    inverse: Tensor = squares.div_(x.shape[-1]).add_(eps).rsqrt_()
    return (total * inverse).mul_(scale).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps, offset), total
