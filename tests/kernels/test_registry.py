"""Every operation's reference against its slow float64 formula. Adding an operation adds its tests."""

from __future__ import annotations

import copy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.support.triton_kernels import module, moved

from headrace.kernels import KERNELS

# Tolerance relative to max(1, largest expected value): a few roundings of the type, and of a sum in float32 or better.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
WHOLE = (torch.bool, torch.int32, torch.int64)
"""Types of ids, places, counts and marks, which are exact; int8 and uint8 are codes of numbers, which are rounded."""

# Operations whose outputs have no one formula to compare with (a draw) bring a suite of their own.
OWN_SUITE = {op for op in KERNELS if not hasattr(module(op, "cases"), "slow")}
CASES = [pytest.param(op, case, id=f"{op}-{case.name}") for op in KERNELS if op not in OWN_SUITE
         for case in module(op, "cases").CASES]


def check(op: str, implementation: ModuleType, case: Any, dtype: torch.dtype, device: str = "cpu") -> None:
    cases = module(op, "cases")
    given = cases.inputs(case, dtype)
    expected = cases.slow(**copy.deepcopy(given))
    found = cases.run(implementation, moved(given, device))
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        assert got.shape == want.shape
        if want.dtype in WHOLE:
            assert torch.equal(got.cpu(), want.to(got.dtype))
        got, want = got.double().cpu(), want.double()
        if not want.numel():
            continue
        assert torch.equal(got.isnan(), want.isnan())
        scale = max(1.0, float(want.nan_to_num().abs().max()))
        assert float((got - want).nan_to_num().abs().max()) <= TOLERANCES[dtype] * scale


def test_every_operation_has_a_suite() -> None:
    assert len(tuple(KERNELS)) > len(OWN_SUITE)
    for op in OWN_SUITE:
        assert list(Path(__file__).parent.glob(f"**/test_{op}*.py")) or (Path(__file__).parent / op).is_dir(), op


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("op", "case"), CASES)
def test_reference(op: str, case: Any, dtype: torch.dtype) -> None:
    check(op, module(op, "reference"), case, dtype)


@pytest.mark.parametrize(("op", "case"), CASES)
def test_public_function(op: str, case: Any) -> None:
    check(op, KERNELS[op], case, torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("op", "case"), CASES)
def test_reference_on_cuda(op: str, case: Any, dtype: torch.dtype) -> None:
    check(op, module(op, "reference"), case, dtype, "cuda")
