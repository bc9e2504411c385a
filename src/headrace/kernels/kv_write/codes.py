"""Keys and values in 8 bits: int8 or fp8 e4m3 codes with one fp16 scale per token and head."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.precision import accumulation_dtype

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The code that the largest element of a vector becomes."""
MOST_SCALE = 65504.0


def encode(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [..., D] -> (codes [..., D], scales [...] fp16) with x about codes * scales; nearest code, ties to even.

    The scale is the largest magnitude over LARGEST, rounded to fp16 before it is used; zero only where every code is.
    """
    most = LARGEST[dtype]
    wide = x.to(accumulation_dtype(x.dtype))
    scales = (wide.abs().amax(-1) / most).clamp(max=MOST_SCALE).half()
    inverse = torch.where(scales > 0, 1 / scales.to(wide.dtype), 0)
    scaled = (wide * inverse[..., None]).clamp(-most, most)
    return (scaled.round() if dtype == torch.int8 else scaled).to(dtype), scales


def decode(codes: Tensor, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
    """codes [..., D] and scales [...] -> [..., D] in dtype. Without scales: the numbers as they are."""
    return codes.to(dtype) if scales is None else codes.to(dtype) * scales.to(dtype)[..., None]
