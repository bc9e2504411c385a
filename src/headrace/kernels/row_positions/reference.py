"""The definition of row_positions in plain PyTorch. Waits for the device."""

from __future__ import annotations

import torch
from torch import Tensor


def row_positions(
    slots: Tensor, offsets: Tensor, counts: Tensor, positions: Tensor, ends: Tensor, frozen: Tensor, tokens: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    live, widths = torch.where(frozen[slots], len(positions) - 1, slots), offsets.diff().long()
    starts, owners = positions[live], live.repeat_interleave(widths)
    place = torch.arange(tokens, device=slots.device) - offsets[:-1].long().repeat_interleave(widths)
    at = starts.repeat_interleave(widths) + place
    written = (place <= counts.repeat_interleave(widths)) & (at < ends[owners])
    return live, starts, (starts + widths).int(), at, owners, written
