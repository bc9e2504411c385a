"""The definition of eight_bit_linear in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.low_bit_linear.reference import dequantized
from headrace.kernels.quantise_rows.reference import quantise_rows
from headrace.kernels.silu_mul.reference import silu_mul


def eight_bit_linear(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None = None, *, codes: torch.dtype, tiled: bool = False,
    gated_inputs: bool = False,
) -> Tensor:
    made, x_scale = quantise_rows(silu_mul(x) if gated_inputs else x, codes)
    weight = dequantized(packed, scale, zero, tiled=tiled, dtype=x_scale.dtype)
    return ((made.to(x_scale.dtype) @ weight.T) * x_scale[:, None]).to(x.dtype)
