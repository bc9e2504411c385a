"""The definition of quantise_rows in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.precision import accumulation_dtype


def quantise_rows(x: Tensor, codes: torch.dtype) -> tuple[Tensor, Tensor]:
    wide = x.to(accumulation_dtype(x.dtype))
    integer = codes == torch.int8
    most, half = (127.0, 127.5) if integer else (448.0, 448.0)
    largest = wide.abs().amax(1)
    scale = largest / torch.full_like(largest, half)  # on CUDA a number would be multiplied by its inverse
    scale = torch.where(scale == 0, torch.finfo(scale.dtype).eps, scale)
    values = (wide / scale[:, None]).clamp(-most, most)
    return (values.round() if integer else values).to(codes), scale
