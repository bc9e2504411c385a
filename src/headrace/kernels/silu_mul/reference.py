"""The definition of silu_mul in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu


def silu_mul(gate_up: Tensor) -> Tensor:
    wide = torch.promote_types(gate_up.dtype, torch.float32)
    gate, up = gate_up.to(wide).chunk(2, -1)
    return (silu(gate) * up).to(gate_up.dtype)
