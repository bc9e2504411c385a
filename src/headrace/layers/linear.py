"""Linear layers over weights in any format of `quant`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from headrace.quant import unquantized


class Linear(nn.Module):
    """x [T, inputs] -> x W^T + bias, [T, outputs]. Parameters are as the weight format names them, and `bias`."""

    bias: Tensor | None

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        for name, shape in unquantized.tensors(outputs, inputs).items():
            self.register_parameter(name, empty_parameter(shape, dtype, device))
        self.register_parameter("bias", empty_parameter((outputs,), dtype, device) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        y = unquantized.apply(cast(Mapping[str, Tensor], self._parameters), x)
        return y if self.bias is None else y + self.bias


def empty_parameter(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """An uninitialised parameter that no gradient flows into."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
