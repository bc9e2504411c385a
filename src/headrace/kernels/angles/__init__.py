"""Cosine and sine of the rotary embedding's angles."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.angles import reference
from headrace.kernels.dispatch import runs_triton


def angles(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """positions [T] int64 from 0 on, frequencies [N] float32 -> (cos, sin) of positions x frequencies, each [T, 1, N] of dtype.

    The product is rounded to float32, as models are trained; a position is below 2^24, and so exact.
    """
    if runs_triton(frequencies) and dtype == torch.float32:
        from headrace.kernels.angles import triton

        return triton.angles(positions, frequencies, dtype)
    return reference.angles(positions, frequencies, dtype)
