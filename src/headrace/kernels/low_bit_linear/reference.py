"""The definition of low_bit_linear in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.low_bit_linear.layout import tile_
from headrace.kernels.precision import accumulation_dtype
from headrace.kernels.rms_norm import Activations, NormWeight, PendingNorm, finished
from headrace.kernels.silu_mul.reference import silu_mul


def low_bit_linear(
    x: Activations, packed: Tensor, scale: Tensor, zero: Tensor | None = None, *, tiled: bool = False, gated: bool = False
) -> Tensor:
    x = finished(x)
    y = _product(x, packed, scale, zero, tiled=tiled)
    return (silu_mul(y) if gated else y).to(x.dtype)


def low_bit_linear_beside(
    x: Activations, packed: Tensor, scale: Tensor, zero: Tensor | None, weight: Tensor, *, tiled: bool = False
) -> tuple[Tensor, Tensor]:
    x = finished(x)
    wide = accumulation_dtype(x.dtype)
    return low_bit_linear(x, packed, scale, zero, tiled=tiled), (x.to(wide) @ weight.to(wide).T).to(x.dtype)


def low_bit_linear_norm(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, residual: Tensor, norm: NormWeight, *, tiled: bool = False
) -> tuple[PendingNorm, Tensor]:
    y = _product(x, packed, scale, zero, tiled=tiled)
    total = (residual.to(y.dtype) + y).to(residual.dtype)
    return PendingNorm.of(total, norm), total


def _product(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, *, tiled: bool) -> Tensor:
    weight = dequantized(packed, scale, zero, tiled=tiled, dtype=accumulation_dtype(x.dtype))
    return x.to(weight.dtype) @ weight.T


def dequantized(
    packed: Tensor, scale: Tensor, zero: Tensor | None = None, *, tiled: bool = False, dtype: torch.dtype
) -> Tensor:
    """The weight as numbers, [O, I] in `dtype`."""
    if tiled:
        packed, scale, zero = packed.clone(), scale.clone(), None if zero is None else zero.clone()
        tile_(packed, scale, zero, undo=True)
    if packed.dtype == torch.int8:
        return packed.to(dtype) * scale.to(dtype)
    codes = unpacked(packed)
    points = torch.full_like(scale, 8, dtype=torch.int32) if zero is None else unpacked(zero.T).T[: len(scale)]
    groups = codes.view(len(codes), scale.shape[1], -1) - points[..., None]  # [O, I / G, G]
    return (groups.to(dtype) * scale.to(dtype)[..., None]).flatten(1)


def unpacked(words: Tensor) -> Tensor:
    """int32 [N, M] -> its codes, int32 [N, 8 M], the lowest four bits first."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    return (words[..., None] >> shifts & 15).flatten(1)
