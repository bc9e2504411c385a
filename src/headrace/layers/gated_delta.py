"""Gated DeltaNet: a linear-attention mixer with one recurrent state per value head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.kernels.causal_conv1d import causal_conv1d
from headrace.kernels.gated_delta_rule import gated_delta_rule
from headrace.kernels.gated_rms_norm import gated_rms_norm
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
        self.spec, self.index, self.eps = spec, index, eps
        wide = accumulation_dtype(dtype)
        self.values = spec.value_heads * spec.value_dim
        self.qkvz = Linear(hidden, spec.conv_channels + self.values, dtype=dtype, device=device)
        self.ab = Linear(hidden, 2 * spec.value_heads, dtype=dtype, device=device)
        self.out = Linear(self.values, hidden, dtype=dtype, device=device)
        self.conv_weight = empty_parameter((spec.conv_channels, spec.conv_width), dtype, device)
        self.a_log = empty_parameter((spec.value_heads,), wide, device)
        self.dt_bias = empty_parameter((spec.value_heads,), wide, device)
        self.norm_weight = empty_parameter((spec.value_dim,), wide, device)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        spec, slots, groups = self.spec, step.batch.slots, step.row_groups
        tails, states = step.pools.conv_tails[self.index], step.pools.states[self.index]
        assert tails is not None and states is not None
        qkvz, keys, channels = self.qkvz(x), spec.key_heads * spec.key_dim, spec.conv_channels
        a, b = self.ab(x).chunk(2, 1)
        qkv = causal_conv1d(qkvz[:, :channels], self.conv_weight, tails, slots, groups)
        q, k = qkv[:, : 2 * keys].view(-1, 2 * spec.key_heads, spec.key_dim).chunk(2, 1)
        v = qkv[:, 2 * keys :].view(-1, spec.value_heads, spec.value_dim)
        z = qkvz[:, channels:].view(-1, spec.value_heads, spec.value_dim)
        y = gated_delta_rule(q, k, v, a, b, self.a_log, self.dt_bias, states, slots, groups)
        mixed: Tensor = self.out(gated_rms_norm(y, z, self.norm_weight, self.eps).flatten(1))
        return mixed
