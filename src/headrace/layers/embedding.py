"""Token embedding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.kernels.embedding import embedding
from headrace.layers.linear import empty_parameter


class Embedding(nn.Module):
    """Token ids [T] -> rows of weight, [T, hidden]."""

    def __init__(self, vocab_size: int, hidden: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = empty_parameter((vocab_size, hidden), dtype, device)

    def forward(self, tokens: Tensor) -> Tensor:
        return embedding(tokens, self.weight)
