"""Activations as 8-bit codes with one scale a token, for linear layers that multiply codes."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.quantise_rows import cuda, reference

CODES = (torch.int8, torch.float8_e4m3fn)


def quantise_rows(x: Tensor, codes: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [T, I] -> its codes [T, I] of the type `codes`, and scales [T] in the larger of float32 and x's type.

    x is about codes * scales: scale = max |x| / 127.5 for int8, / 448 for fp8 e4m3, and the scales' type's epsilon for a row of
    zeros; code = x / scale, clamped to -127 ... 127 or -448 ... 448 and rounded to nearest, ties to even. This is what
    compressed-tensors calls dynamic symmetric quantisation per token, but for two things: the arithmetic is in float32 where
    x has 16 bits; and -127.5, where a row's largest number may lie, becomes -127, where there the division's last bit decides
    between -127 and -128. A row with a NaN has a NaN scale.
    """
    if cuda.suits(x):
        return cuda.quantise_rows(x, codes)
    return reference.quantise_rows(x, codes)
