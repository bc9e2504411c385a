"""The definition of row_places in plain PyTorch. Waits for the device."""

from __future__ import annotations

import torch
from torch import Tensor


def row_places(
    tables: Tensor, newest: Tensor, offsets: Tensor, at: Tensor, written: Tensor, drafts: Tensor, proposed: Tensor,
    slots: Tensor, nowhere: Tensor, page_tokens: int,
) -> tuple[Tensor, Tensor]:
    rows = torch.arange(len(newest), device=at.device).repeat_interleave(offsets.diff().long())  # [T]
    places = tables[:, rows, at // page_tokens] * page_tokens + at % page_tokens
    place = torch.arange(len(at), device=at.device) - offsets[rows].long() - 1
    drafts = torch.where(drafts < 0, proposed[slots[rows], place.clamp(0, proposed.shape[1] - 1)], drafts)
    tokens = drafts.index_copy(0, offsets[:-1].long(), newest)
    return tokens, torch.where(written, places, nowhere[:, None])
