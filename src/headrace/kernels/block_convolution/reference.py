"""The definition of block_convolution in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from headrace.kernels.precision import accumulation_dtype


def block_convolution(x: Tensor, base: Tensor, change: Tensor, block: int) -> Tensor:
    wide = accumulation_dtype(x.dtype)
    channels, groups = x.shape[1], change.shape[2]
    blocks = x.to(wide).view(-1, block, channels)
    total = torch.zeros_like(blocks)
    for tap in range(min(len(base), block)):
        own = change[:, tap].to(wide).repeat_interleave(channels // groups, 1).view(blocks.shape)
        total.addcmul_(own + base[tap].to(wide), pad(blocks[:, : block - tap], (0, 0, tap, 0)))
    return total.view(x.shape).to(x.dtype)
