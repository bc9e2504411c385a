"""The definition of gated_delta_mix: its three operations one after the other."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.causal_conv1d.reference import causal_conv1d
from headrace.kernels.gated_delta_mix.split import split_gates, split_qkv
from headrace.kernels.gated_delta_mix.weights import MixWeights
from headrace.kernels.gated_delta_rule.reference import gated_delta_rule
from headrace.kernels.gated_rms_norm.reference import gated_rms_norm
from headrace.kernels.rows import PackedRows


def gated_delta_mix(
    qkvz: Tensor, ab: Tensor, weights: MixWeights, tails: Tensor, states: Tensor, slots: Tensor, rows: PackedRows
) -> Tensor:
    channels = weights.conv.shape[0]
    qkv = causal_conv1d(qkvz[:, :channels], weights.conv, tails, slots, rows)
    (q, k, v), (a, b) = split_qkv(qkv, states), split_gates(ab)
    y = gated_delta_rule(q, k, v, a, b, weights.a_log, weights.dt_bias, states, slots, rows)
    z = qkvz[:, channels:].view(v.shape)
    return gated_rms_norm(y, z, weights.norm, weights.eps).flatten(1)
