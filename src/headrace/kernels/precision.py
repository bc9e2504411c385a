"""The type that operations accumulate in."""

from __future__ import annotations

import torch


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The larger of float32 and a floating-point type."""
    return torch.float64 if dtype == torch.float64 else torch.float32
