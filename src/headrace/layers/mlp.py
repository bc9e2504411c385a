"""Gated MLP."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.layers.linear import Linear
from headrace.models.spec import MlpSpec


class Mlp(nn.Module):
    """x [T, hidden] -> down(silu(gate x) * (up x)); `gate_up` holds the rows of gate, then of up."""

    def __init__(self, spec: MlpSpec, hidden: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.gate_up = Linear(hidden, 2 * spec.intermediate, bias=spec.bias, dtype=dtype, device=device)
        self.down = Linear(spec.intermediate, hidden, bias=spec.bias, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        if self.down.format.rounds_inputs:
            return self.down.after_gate(self.gate_up(x))
        y: Tensor = self.down(self.gate_up.gated(x))
        return y
