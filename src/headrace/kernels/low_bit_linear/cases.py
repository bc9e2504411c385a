"""Inputs on which every implementation of low_bit_linear must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.low_bit_linear.layout import tile_
from headrace.kernels.rms_norm import NormWeight, PendingNorm


@dataclass(frozen=True, slots=True)
class Case:
    """group 0: 8 bits with one scale a row. pending: parts of the sums of a norm that x waits for. beside: outputs of a plain
    weight beside. norm: with a residual and its norm.
    """

    name: str
    rows: int
    outputs: int
    inputs: int
    group: int
    zeros: bool = False
    tiled: bool = False
    gated: bool = False
    pending: int = 0
    beside: int = 0
    norm: bool = False
    scale: torch.dtype = torch.bfloat16


CASES = (
    Case("one-row", 1, 5, 64, 32),
    Case("odd-outputs", 3, 13, 128, 64, zeros=True, scale=torch.float16),
    Case("whole-row-groups", 4, 9, 24, 24),
    Case("gated", 2, 6, 64, 32, gated=True),
    Case("no-rows", 0, 16, 128, 128, tiled=True),
    Case("one-row-tiled", 1, 16, 128, 128, tiled=True),
    Case("few-rows-zeros-tiled", 5, 48, 384, 64, zeros=True, tiled=True, scale=torch.float16),
    Case("eight-rows-tiled", 8, 80, 256, 32, tiled=True),
    Case("gated-tiled", 4, 96, 384, 128, tiled=True, gated=True),
    Case("gated-odd-tiles-zeros-tiled", 8, 160, 256, 64, zeros=True, tiled=True, gated=True),
    Case("gated-many-rows-tiled", 19, 64, 256, 128, tiled=True, gated=True),
    Case("nine-rows-tiled", 9, 16, 256, 128, zeros=True, tiled=True),
    Case("many-rows-tiled", 40, 272, 384, 128, tiled=True),
    Case("rows-of-two-blocks-tiled", 77, 144, 256, 32, zeros=True, tiled=True),
    Case("eight-bits", 3, 7, 40, 0),
    Case("eight-bits-tiled", 2, 32, 256, 0, tiled=True),
    Case("pending-tiled", 3, 48, 256, 128, tiled=True, pending=16),
    Case("pending-gated-tiled", 8, 96, 384, 64, zeros=True, tiled=True, gated=True, pending=24),
    Case("pending-many-rows-tiled", 12, 32, 128, 128, tiled=True, pending=8),
    Case("beside", 2, 6, 64, 32, beside=3),
    Case("beside-tiled", 5, 80, 1280, 128, tiled=True, beside=32),
    Case("pending-beside-tiled", 1, 48, 384, 128, tiled=True, beside=48, pending=24),
    Case("norm", 3, 5, 64, 32, norm=True),
    Case("norm-tiled", 2, 80, 384, 128, tiled=True, norm=True),
    Case("norm-eight-rows-zeros-tiled", 8, 144, 256, 32, zeros=True, tiled=True, norm=True),
    Case("norm-many-rows-tiled", 21, 32, 128, 128, tiled=True, norm=True),
    Case("pending-rows-of-a-block-tiled", 43, 272, 256, 128, tiled=True, pending=17),
    Case("eight-bits-many-rows-tiled", 33, 144, 256, 0, tiled=True, scale=torch.float16),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(case.rows + case.outputs)
    x = torch.randn(case.rows, case.inputs, generator=rng).to(dtype)
    packed, scale, zero = weight(case, rng)
    if case.tiled:
        tile_(packed, scale, zero)
    given: dict[str, Any] = {"x": x, "packed": packed, "scale": scale, "zero": zero, "tiled": case.tiled, "gated": case.gated}
    if case.pending:
        given["squares"] = torch.rand(case.rows, case.pending, generator=rng) * 2 * case.inputs / case.pending
    if case.beside:
        given["beside"] = (torch.randn(case.beside, case.inputs, generator=rng) * case.inputs**-0.5).to(dtype)
    if case.norm:
        given["residual"] = torch.randn(case.rows, case.outputs, generator=rng).to(dtype)
        given["norm"] = 0.3 * torch.randn(case.outputs, generator=rng)
    return given


def weight(case: Case, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor | None]:
    """packed, scale and zero in row order; W has a variance of about 1 / I."""
    groups = case.inputs // case.group if case.group else 1
    spread = case.inputs**-0.5 / (4.6 if case.group else 74)
    scale = ((torch.rand(case.outputs, groups, generator=rng) + 0.5) * spread).to(case.scale)
    if not case.group:
        return torch.randint(-128, 128, (case.outputs, case.inputs), generator=rng).to(torch.int8), scale, None
    packed = _bits(case.outputs, case.inputs // 8, rng)
    return packed, scale, _bits(-(-case.outputs // 8), groups, rng) if case.zeros else None


def _bits(rows: int, words: int, rng: torch.Generator) -> Tensor:
    return torch.randint(-(2**31), 2**31, (rows, words), generator=rng).to(torch.int32)


EPS, OFFSET = 1e-6, 1.0


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    x, weight = given["x"], (given["packed"], given["scale"], given["zero"])
    if "squares" in given:
        x = PendingNorm(x, given["squares"], EPS)
    if "beside" in given:
        y, other = op.low_bit_linear_beside(x, *weight, given["beside"], tiled=given["tiled"])
        return y, other
    if "norm" in given:
        norm = NormWeight(given["norm"], EPS, OFFSET)
        pending, total = op.low_bit_linear_norm(x, *weight, given["residual"], norm, tiled=given["tiled"])
        return pending.normed(), total
    return (op.low_bit_linear(x, *weight, tiled=given["tiled"], gated=given["gated"]),)


def slow(
    *, x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, tiled: bool, gated: bool, squares: Tensor | None = None,
    beside: Tensor | None = None, residual: Tensor | None = None, norm: Tensor | None = None,
) -> tuple[Tensor, ...]:
    wide = x.double()
    if squares is not None:
        wide = wide / (squares.double().sum(1, keepdim=True) / x.shape[1] + EPS).sqrt()
    y = wide @ _matrix(packed, scale, zero, x.shape[1], tiled).T
    if beside is not None:
        return y, wide @ beside.double().T
    if norm is not None:
        assert residual is not None
        total = residual.double() + y
        return total / (total.square().mean(1, keepdim=True) + EPS).sqrt() * (OFFSET + norm.double()), total
    gate, up = y.chunk(2, 1) if gated else (y, y)
    return (gate / (1 + torch.exp(-gate)) * up if gated else y,)


def _matrix(packed: Tensor, scale: Tensor, zero: Tensor | None, inputs: int, tiled: bool) -> Tensor:
    four, outputs, groups = packed.dtype == torch.int32, len(packed), scale.shape[1]
    values, scales = packed.flatten().tolist(), scale.double().flatten().tolist()
    zeros = None if zero is None else zero.flatten().tolist()

    def weight_at(o: int, i: int) -> float:
        group = i * groups // inputs
        factor = float(scales[(o // 16 * groups + group) * 16 + o % 8 * 2 + o % 16 // 8 if tiled else o * groups + group])
        if not four:
            return int(values[_byte(o, i, inputs, tiled)]) * factor
        word, place = _code(o, i, inputs, tiled)
        return float((values[word] >> 4 * place & 15) - _point(zeros, o, group, groups, tiled)) * factor

    return torch.tensor([[weight_at(o, i) for i in range(inputs)] for o in range(outputs)], dtype=torch.float64)


def _tile_and_lane(o: int, i: int, inputs: int) -> tuple[int, int]:
    return o // 16 * (inputs // 128) + i // 128, o % 8 * 4 + i % 8 // 2


def _byte(o: int, i: int, inputs: int, tiled: bool) -> int:
    if not tiled:
        return o * inputs + i
    tile, lane = _tile_and_lane(o, i, inputs)
    return ((tile * 4 + i % 128 // 32) * 32 + lane) * 16 + i % 32 // 8 * 4 + i % 2 * 2 + o % 16 // 8


def _code(o: int, i: int, inputs: int, tiled: bool) -> tuple[int, int]:
    """Which word has the code of W[o, i], and at which place of eight."""
    if not tiled:
        return o * inputs // 8 + i // 8, i % 8
    tile, lane = _tile_and_lane(o, i, inputs)
    word = ((tile * 2 + i % 128 // 64) * 32 + lane) * 4 + i % 64 // 16
    return word, i % 2 * 4 + i % 16 // 8 * 2 + o % 16 // 8


def _point(zeros: list[int] | None, o: int, group: int, groups: int, tiled: bool) -> int:
    if zeros is None:
        return 8
    if not tiled:
        return zeros[o // 8 * groups + group] >> 4 * (o % 8) & 15
    place = o % 8 * 2 + o % 16 // 8  # of the 16 codes of a tile's group
    return zeros[(o // 16 * groups + group) * 2 + place // 8] >> 4 * (place % 8) & 15
