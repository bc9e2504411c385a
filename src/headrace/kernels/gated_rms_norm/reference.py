"""The definition of gated_rms_norm in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from headrace.kernels.precision import accumulation_dtype


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = accumulation_dtype(x.dtype)
    normed = torch.rms_norm(x.to(wide), (x.shape[-1],), weight.to(wide), eps)
    return (normed * silu(gate.to(wide))).to(x.dtype)
