"""The definition of rope in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.precision import accumulation_dtype


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    wide = accumulation_dtype(x.dtype)
    first, second = x[..., :half].to(wide), x[..., half : 2 * half].to(wide)
    rotated = [torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos, first, sin)]
    if x.shape[-1] == 2 * half:
        return torch.cat(rotated, -1).to(x.dtype)
    return torch.cat([*(part.to(x.dtype) for part in rotated), x[..., 2 * half :]], -1)
