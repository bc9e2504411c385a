"""The definition of embedding in plain PyTorch."""

from __future__ import annotations

from torch import Tensor, nn


def embedding(tokens: Tensor, weight: Tensor) -> Tensor:
    return nn.functional.embedding(tokens, weight)
