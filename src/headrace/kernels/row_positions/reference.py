"""The definition of row_positions in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def row_positions(
    slots: Tensor, counts: Tensor, positions: Tensor, ends: Tensor, frozen: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    live = torch.where(frozen[slots], len(positions) - 1, slots)
    starts, place = positions[live], torch.arange(width, device=slots.device)
    at = starts[:, None] + place
    written = (place <= counts[:, None]) & (at < ends[live][:, None])
    return live, at.flatten(), (starts + width).int(), starts + 1, written.flatten()
