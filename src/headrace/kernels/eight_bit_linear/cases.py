"""Inputs on which every implementation of eight_bit_linear must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.low_bit_linear import cases as low_bit
from headrace.kernels.quantise_rows import cases as quantise
from headrace.kernels.silu_mul import cases as silu_mul
from headrace.kernels.silu_mul.reference import silu_mul as silu_mul_reference


@dataclass(frozen=True, slots=True)
class Case:
    """A weight and rows as low_bit_linear has them, the type of codes, and whether rows have a gate."""

    weight: low_bit.Case
    codes: torch.dtype
    gated_inputs: bool = False

    @property
    def name(self) -> str:
        return f"{self.weight.name}-{'int8' if self.codes == torch.int8 else 'fp8'}{'-gated-inputs' * self.gated_inputs}"


_CODES = (torch.int8, torch.float8_e4m3fn)
_WEIGHTS = tuple(weight for weight in low_bit.CASES if not (weight.gated or weight.pending or weight.beside or weight.norm))
_GATED = ("odd-outputs", "no-rows", "few-rows-zeros-tiled", "many-rows-tiled", "eight-bits-tiled")
CASES = (
    *(Case(weight, codes) for weight in _WEIGHTS for codes in _CODES),
    *(Case(weight, codes, gated_inputs=True) for weight in _WEIGHTS if weight.name in _GATED for codes in _CODES),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    given = low_bit.inputs(case.weight, dtype) | {"codes": case.codes, "gated_inputs": case.gated_inputs}
    del given["gated"]
    if case.gated_inputs:
        rng = torch.Generator().manual_seed(case.weight.rows)
        given["x"] = torch.cat((2 * torch.randn(given["x"].shape, generator=rng).to(dtype), given["x"]), 1)
    return given


def without_gate(given: dict[str, Any]) -> dict[str, Any]:
    """The same rows with silu_mul of them taken, in x's type as the operation says, before anyone widens that type."""
    return given | {"x": silu_mul_reference(given["x"]), "gated_inputs": False} if given["gated_inputs"] else given


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    return (op.eight_bit_linear(**given),)


def slow(*, x: Tensor, codes: torch.dtype, gated_inputs: bool, **weight: Any) -> tuple[Tensor, ...]:
    seen = silu_mul.slow(gate_up=x)[0].to(x.dtype) if gated_inputs else x
    made, scale = quantise.slow(x=seen, codes=codes)
    return low_bit.slow(x=made * scale[:, None], gated=False, **weight)
