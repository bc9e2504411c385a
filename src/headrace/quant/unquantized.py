"""Plain weights in a floating-point type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace import quant

if TYPE_CHECKING:
    from torch import Tensor


def detect(config: Mapping[str, Any]) -> bool:
    return not quant.quantization(config)


def tensors(outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
    return {"weight": (outputs, inputs)}


def apply(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """x [T, inputs] -> x weight^T, [T, outputs]."""
    from headrace.kernels.linear import linear  # here, since a checkpoint's format is told without torch

    return linear(x, parameters["weight"])
