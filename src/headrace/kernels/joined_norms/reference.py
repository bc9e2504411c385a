"""The definition in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.joined_norms.rows import Before
from headrace.kernels.rms_norm import NormWeight
from headrace.kernels.rms_norm.reference import rms_norm


def joined_norms(
    tokens: Tensor, table: Tensor, hidden: Tensor, token_norm: NormWeight, hidden_norm: NormWeight, before: Before | None = None
) -> Tensor:
    if before is not None:
        hidden = hidden.roll(1, 0).index_copy_(0, before.row_offsets[:-1].long(), before.kept[before.slots])
    parts = (table[tokens], token_norm), (hidden, hidden_norm)
    return torch.cat([rms_norm(x, norm.weight, norm.eps, norm.offset) for x, norm in parts], 1)


def keep_last(before: Before, counts: Tensor, hidden: Tensor) -> None:
    last = (before.row_offsets[:-1] + counts - 1).clamp(0, len(hidden) - 1)
    before.kept.index_copy_(0, before.slots, hidden[last])
