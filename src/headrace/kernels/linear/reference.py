"""The definition of linear in plain PyTorch."""

from __future__ import annotations

from torch import Tensor


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.T
