"""Rotary position embedding over the first dimensions of each head."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.rope import reference


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [T, H, D] by the angles whose cos and sin [T, 1, r / 2] are given; dimensions r ... D pass unchanged.

    Half-split pairs (NeoX style): for i < r / 2, y_i = x_i cos_i - x_{i+r/2} sin_i and y_{i+r/2} = x_{i+r/2} cos_i + x_i sin_i.
    """
    return reference.rope(x, cos, sin)
