"""The definition of top_tokens in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.precision import accumulation_dtype


def top_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    values, ids = torch.topk(logits, count, 1)
    return values.to(accumulation_dtype(logits.dtype)), ids
