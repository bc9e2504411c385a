"""Linear layers over weights in any format of `quant`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from headrace.kernels.rms_norm import Activations, NormWeight, PendingNorm
from headrace.kernels.silu_mul import silu_mul
from headrace.quant import LinearFormat
from headrace.quant.unquantized import Plain

SHARED_ROWS = 128
"""Whole tiles of every format's rows."""


class Linear(nn.Module):
    """x [T, inputs] -> x W^T + bias, [T, outputs]. Parameters are as the weight format names them, and `bias`.

    Without memory until `allocate`, which is told how the checkpoint keeps the layer's weights.
    """

    bias: Tensor | None

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.inputs, self.outputs, self._dtype, self._device = inputs, outputs, dtype, device
        self.register_parameter("bias", empty_parameter((outputs,), dtype, device) if bias else None)
        self.format: LinearFormat = Plain()
        self.prepared = False

    def allocate(self, format: LinearFormat) -> None:
        """Uninitialised parameters for weights in this format."""
        self.format = format
        for name, (shape, stored) in format.tensors(self.outputs, self.inputs).items():
            dtype = self._dtype if stored is None else getattr(torch, stored)
            self.register_parameter(name, empty_parameter(shape, dtype, self._device))

    def prepare(self) -> None:
        """To be called once, when the weights are there and before the layer is used."""
        self.prepared = self.format.prepare(self._weights(), self.inputs)

    def first(self, outputs: int) -> Linear:
        """The layer of its first outputs, so many of them, over the same memory. A multiple of SHARED_ROWS, after `prepare`."""
        if not 0 < outputs <= self.outputs or outputs % SHARED_ROWS:
            raise ValueError(f"{outputs} of {self.outputs} outputs are not a multiple of {SHARED_ROWS}")
        part = Linear(self.inputs, outputs, dtype=self._dtype, device=self._device)
        part.format, part.prepared = self.format, self.prepared
        for name, parameter in self._parameters.items():
            rows = None if parameter is None else parameter.data[: len(parameter) * outputs // self.outputs]
            part.register_parameter(name, None if rows is None else nn.Parameter(rows, requires_grad=False))
        return part

    def forward(self, x: Activations) -> Tensor:
        y = self.format.apply(self._weights(), x, prepared=self.prepared)
        return y if self.bias is None else y + self.bias

    def form_of(self, rows: int, *, gated: bool = False, beside: Linear | None = None) -> Hashable:
        """What a number of rows decides of the kernels of this layer: those of equal answers are the same. gated, beside: of
        those functions.
        """
        of_rows = self.like_inputs(self.inputs).expand(rows, -1)
        weight = None if beside is None or self.bias is not None else beside.plain_weight
        within = gated and self.bias is None
        return self.format.form_of(self._weights(), of_rows, prepared=self.prepared, gated=within, beside=weight)

    def like_inputs(self, width: int) -> Tensor:
        """[1, width], of the type and on the device of the layer's inputs."""
        return torch.empty(1, width, dtype=self._dtype, device=next(self.parameters()).device)

    def beside(self, x: Activations, other: Linear) -> tuple[Tensor, Tensor]:
        """(self(x), other(x)), in one launch where that can be."""
        weight = other.plain_weight
        if self.bias is None and weight is not None:
            found = self.format.apply_beside(self._weights(), x, weight, prepared=self.prepared)
            if found is not None:
                return found
        second = other(x)  # first, since the weights of the larger are on their way meanwhile
        return self(x), second

    def with_norm(self, x: Tensor, residual: Tensor, norm: NormWeight) -> tuple[PendingNorm, Tensor] | None:
        """(the norm of total, total) with total = residual + self(x); None where the norm is as well made apart."""
        if self.bias is not None:
            return None
        return self.format.apply_norm(self._weights(), x, residual, norm, prepared=self.prepared)

    def reads_pending(self, beside: Linear | None = None) -> bool:
        """Whether a PendingNorm is read as fast as plain activations, by `beside` with that layer if there is one."""
        if beside is None:
            return self.format.reads_pending(prepared=self.prepared)
        weight = beside.plain_weight
        return weight is not None and self.bias is None and self.format.reads_pending(prepared=self.prepared, beside=weight)

    @property
    def plain_weight(self) -> Tensor | None:
        """The matrix, where the layer has nothing else."""
        return self._parameters["weight"] if isinstance(self.format, Plain) and self.bias is None else None

    def gated(self, x: Activations) -> Tensor:
        """x [T, inputs] -> silu of the first half of the outputs times the other half, [T, outputs / 2]."""
        if self.bias is not None:
            return silu_mul(self(x))
        return self.format.apply_gated(self._weights(), x, prepared=self.prepared)

    def after_gate(self, gate_up: Tensor) -> Tensor:
        """gate_up [T, 2 inputs] -> silu of its first half times the other half, through the layer: [T, outputs]."""
        y = self.format.apply_after_gate(self._weights(), gate_up, prepared=self.prepared)
        return y if self.bias is None else y + self.bias

    def _weights(self) -> Mapping[str, Tensor]:
        return cast(Mapping[str, Tensor], self._parameters)


def empty_parameter(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """An uninitialised parameter that no gradient flows into."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
