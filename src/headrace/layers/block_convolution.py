"""Convolutions around what they enclose, within blocks of tokens, whose coefficients follow from the tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.kernels.block_convolution import block_convolution
from headrace.layers.linear import Linear, empty_parameter


class BlockConvolution(nn.Module):
    """Two convolutions over x [N block, hidden], before (side 0) and behind (side 1) a mixer or an MLP.

    A coefficient is `base` [2, taps, hidden], by side, tap and channel, and what `projection` makes of the token that the first
    convolution is given: one number for each side, tap and `group` of neighbouring channels. Source: DFlash2.
    """

    def __init__(self, hidden: int, taps: int, group: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.taps = taps
        self.base = empty_parameter((2, taps, hidden), dtype, device)
        self.projection = Linear(hidden, 2 * taps * (hidden // group), dtype=dtype, device=device)

    def changes(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, 2, taps, hidden / group]: what tokens add to the coefficients of both sides."""
        changes: Tensor = self.projection(x)
        return changes.view(len(x), 2, self.taps, -1)

    def forward(self, x: Tensor, changes: Tensor, side: int, block: int) -> Tensor:
        return block_convolution(x, self.base[side], changes[:, side], block)
