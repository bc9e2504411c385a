"""Gated DeltaNet: a linear-attention mixer with one recurrent state per value head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.kernels.gated_delta_mix import MixWeights, gated_delta_mix
from headrace.kernels.precision import accumulation_dtype
from headrace.layers.linear import Linear, empty_parameter
from headrace.layers.step import Step
from headrace.models.spec import GatedDeltaSpec


class GatedDelta(nn.Module):
    """x [T, hidden] -> [T, hidden]; the rows' states and convolution tails in the layer's pools move on.

    `qkvz` holds the rows of q, k, v (which the convolution mixes) and of the output gate z; `ab` those of the decay and of
    the learning rate. What steers the decay is kept in float32 or better. index: of the layer, in the pools.
    """

    def __init__(
        self, spec: GatedDeltaSpec, hidden: int, index: int, *, eps: float, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.index, self.eps = index, eps
        wide = accumulation_dtype(dtype)
        values = spec.value_heads * spec.value_dim
        self.qkvz = Linear(hidden, spec.conv_channels + values, dtype=dtype, device=device)
        self.ab = Linear(hidden, 2 * spec.value_heads, dtype=dtype, device=device)
        self.out = Linear(values, hidden, dtype=dtype, device=device)
        taps = torch.empty((spec.conv_width, spec.conv_channels), dtype=dtype, device=device)
        self.conv_weight = nn.Parameter(taps.T, requires_grad=False)  # [channels, width], channels side by side as in x
        self.a_log = empty_parameter((spec.value_heads,), wide, device)
        self.dt_bias = empty_parameter((spec.value_heads,), wide, device)
        self.norm_weight = empty_parameter((spec.value_dim,), wide, device)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        tails, states = step.pools.conv_tails[self.index], step.pools.states[self.index]
        assert tails is not None and states is not None
        weights = MixWeights(self.conv_weight, self.a_log, self.dt_bias, self.norm_weight, self.eps)
        mixed = gated_delta_mix(self.qkvz(x), self.ab(x), weights, tails, states, step.batch.slots, step.rows)
        projected: Tensor = self.out(mixed)
        return projected
