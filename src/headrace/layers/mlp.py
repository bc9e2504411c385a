"""Gated MLP."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor, nn

from headrace.kernels.rms_norm import Activations
from headrace.layers.linear import Linear
from headrace.layers.norm import RmsNorm
from headrace.models.spec import MlpSpec


class Mlp(nn.Module):
    """down(silu(gate x) * (up x)); `gate_up` holds the rows of gate, then of up."""

    def __init__(self, spec: MlpSpec, hidden: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.gate_up = Linear(hidden, 2 * spec.intermediate, bias=spec.bias, dtype=dtype, device=device)
        self.down = Linear(spec.intermediate, hidden, bias=spec.bias, dtype=dtype, device=device)

    def forward(self, x: Activations, residual: Tensor, norm: RmsNorm) -> tuple[Activations, Tensor]:
        """x [T, hidden] -> (norm(total), total) with total = residual + what the MLP makes of x."""
        if self.down.format.rounds_inputs:
            return norm.add(self.down.after_gate(self.gate_up(x)), residual)
        return norm.behind(self.down, self.gate_up.gated(x), residual)

    def alone(self, x: Activations) -> Tensor:
        """What the MLP makes of x [T, hidden], added to nothing."""
        if self.down.format.rounds_inputs:
            return self.down.after_gate(self.gate_up(x))
        y: Tensor = self.down(self.gate_up.gated(x))
        return y

    def forms(self, tokens: int) -> tuple[Hashable, ...]:
        """What a number of tokens decides of the kernels of each linear layer: those of equal answers are the same."""
        return self.gate_up.form_of(tokens, gated=not self.down.format.rounds_inputs), self.down.form_of(tokens)

    def reads_pending(self) -> bool:
        return self.gate_up.reads_pending()
