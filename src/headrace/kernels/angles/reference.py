"""The definition of angles in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def angles(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    turned = (positions.float()[:, None] * frequencies)[:, None]
    return turned.cos().to(dtype), turned.sin().to(dtype)
