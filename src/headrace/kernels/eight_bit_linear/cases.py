"""Inputs on which every implementation of eight_bit_linear must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.low_bit_linear import cases as low_bit
from headrace.kernels.quantise_rows import cases as quantise


@dataclass(frozen=True, slots=True)
class Case:
    """A weight and rows as low_bit_linear has them, and the type of codes."""

    weight: low_bit.Case
    codes: torch.dtype

    @property
    def name(self) -> str:
        return f"{self.weight.name}-{'int8' if self.codes == torch.int8 else 'fp8'}"


_WEIGHTS = tuple(weight for weight in low_bit.CASES if not weight.gated)
CASES = tuple(Case(weight, codes) for weight in _WEIGHTS for codes in (torch.int8, torch.float8_e4m3fn))


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    given = low_bit.inputs(case.weight, dtype) | {"codes": case.codes}
    del given["gated"]
    return given


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    return (op.eight_bit_linear(**given),)


def slow(*, x: Tensor, codes: torch.dtype, **weight: Any) -> tuple[Tensor, ...]:
    made, scale = quantise.slow(x=x, codes=codes)
    return low_bit.slow(x=made * scale[:, None], gated=False, **weight)
