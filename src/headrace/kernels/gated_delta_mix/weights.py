"""The parameters of a Gated DeltaNet mixer between its projections."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class MixWeights:
    """conv [C, W] of q | k | v channels, in memory best as [W, C]; a_log, dt_bias [HV]; norm [DV] with eps."""

    conv: Tensor
    a_log: Tensor
    dt_bias: Tensor
    norm: Tensor
    eps: float
