"""Inputs on which every implementation of quantise_rows must agree, and the slow formula."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """size: of the activations. zeros: a row of nothing else."""

    name: str
    rows: int
    inputs: int
    codes: torch.dtype
    size: float = 1.0
    zeros: bool = False


CASES = (
    Case("int8", 3, 40, torch.int8),
    Case("int8-large", 2, 144, torch.int8, size=300.0, zeros=True),
    Case("int8-no-rows", 0, 16, torch.int8),
    Case("fp8", 3, 40, torch.float8_e4m3fn),
    Case("fp8-small", 2, 144, torch.float8_e4m3fn, size=1e-3, zeros=True),
    Case("fp8-no-rows", 0, 16, torch.float8_e4m3fn),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Sizes from a tenth to twenty standard deviations, so that small fp8 codes occur too."""
    rng = torch.Generator().manual_seed(case.rows + case.inputs)
    x = torch.randn(case.rows, case.inputs, generator=rng) * 10 ** (2 * torch.rand(case.rows, case.inputs, generator=rng) - 1)
    x[1:2] *= not case.zeros
    return {"x": (x * case.size).to(dtype), "codes": case.codes}


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    codes, scale = op.quantise_rows(**given)
    assert codes.dtype == given["codes"]
    return codes.double(), scale


def slow(*, x: Tensor, codes: torch.dtype) -> tuple[Tensor, ...]:
    """Number by number; every operation is rounded to float32 unless x is float64."""
    rounded: Callable[[float], float] = float if x.dtype == torch.float64 else _float32
    integer = codes == torch.int8
    scales = [rounded(max(map(abs, row)) / (127.5 if integer else 448.0)) for row in x.double().tolist()]
    scales = [scale or (2.0**-52 if x.dtype == torch.float64 else 2.0**-23) for scale in scales]
    made = [[_integer(rounded(v / scale)) if integer else _e4m3(rounded(v / scale)) for v in row]
            for row, scale in zip(x.double().tolist(), scales, strict=True)]
    return torch.tensor(made, dtype=torch.float64).view(x.shape), torch.tensor(scales, dtype=torch.float64)


def _float32(value: float) -> float:
    (found,) = struct.unpack("f", struct.pack("f", value))
    return float(found)


def _integer(value: float) -> float:
    return round(min(127.0, max(-127.0, value)))


@cache
def _e4m3_sizes() -> tuple[float, ...]:
    """The values of the codes 0 ... 126: four bits of exponent (bias 7), three of mantissa (OCP 8-bit floating point)."""
    return tuple((code % 8 + 8 * (code >= 8)) * 2.0 ** (max(code // 8, 1) - 10) for code in range(127))


def _e4m3(value: float) -> float:
    sizes = _e4m3_sizes()
    code = min(range(127), key=lambda c: (abs(sizes[c] - min(abs(value), 448.0)), c % 2))
    return sizes[code] if value > 0 else -sizes[code]
