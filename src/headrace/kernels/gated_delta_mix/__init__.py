"""Gated DeltaNet between its projections: convolution, gated delta rule and gated norm as one operation."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.gated_delta_mix import reference
from headrace.kernels.gated_delta_mix.weights import MixWeights
from headrace.kernels.rows import PackedRows

__all__ = ["MixWeights", "gated_delta_mix"]


def gated_delta_mix(
    qkvz: Tensor, ab: Tensor, weights: MixWeights, tails: Tensor, states: Tensor, slots: Tensor, rows: PackedRows
) -> Tensor:
    """qkvz [T, C + HV DV], ab [T, 2 HV] -> [T, HV DV], as qkvz.

    qkvz holds q | k | v, which causal_conv1d mixes over its C channels, and the gate z; ab the decay's and the learning rate's
    inputs. Then gated_delta_rule, then gated_rms_norm over each value head. tails [slots, W - 1, C] and states [slots, HV, DV,
    DK] of the rows' slots move on, as those operations say. Only the types of what memory holds are roundings: implementations
    may keep what lies between the three operations in a wider type.
    """
    if runs_triton(qkvz):
        from headrace.kernels.gated_delta_mix import triton

        return triton.gated_delta_mix(qkvz, ab, weights, tails, states, slots, rows)
    return reference.gated_delta_mix(qkvz, ab, weights, tails, states, slots, rows)
