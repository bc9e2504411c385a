"""The definition of gated_rms_norm in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    normed = torch.rms_norm(x.to(wide), (x.shape[-1],), weight.to(wide), eps)
    return (normed * silu(gate.to(wide))).to(x.dtype)
