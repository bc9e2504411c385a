"""Every Triton kernel compiled, over its operation's cases, against the float32 reference on the same rounded inputs.

What a kernel allocates holds NaN before it runs, so that an element it does not write is seen.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.support.triton_kernels import TRITON_OPS, module, moved, shared_cases, widened
from torch import Tensor

from headrace.kernels import KERNELS

pytestmark = pytest.mark.gpu

# Of rms(reference): the largest and the mean error that a 16-bit kernel may have. float32 has the reference's own tolerance.
LARGEST, MEAN = {torch.float32: 1e-4}, {torch.float32: 1e-5}
SIXTEEN_BITS = (2e-2, 3e-3)
CASES = [pytest.param(op, case, id=f"{op}-{case.name}") for op in TRITON_OPS for case in shared_cases(op)]


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.empty and its kin return memory full of NaN, or of the largest integer."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch, "empty_strided"), (Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, _poisoning(getattr(owner, name)))
    yield


def _poisoning(allocate: Any) -> Any:
    def allocate_poisoned(*args: Any, **kwargs: Any) -> Tensor:
        memory: Tensor = allocate(*args, **kwargs)
        return memory.fill_(float("nan") if memory.dtype.is_floating_point else torch.iinfo(memory.dtype).max)

    return allocate_poisoned


def agree(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    largest, mean = (LARGEST[dtype], MEAN[dtype]) if dtype in LARGEST else SIXTEEN_BITS
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        assert got.shape == want.shape
        got, want = got.double().cpu(), want.double().cpu()
        assert torch.equal(got.isnan(), want.isnan()), "NaN where there is none in the reference, or the reverse"
        if not want.numel():
            continue
        rms = float(want.nan_to_num().square().mean().sqrt())
        error = (got - want).nan_to_num().abs()
        assert float(error.max()) <= largest * rms and float(error.mean()) <= mean * rms, (
            f"error {float(error.max()) / rms:.2%} at most, {float(error.mean()) / rms:.3%} on average"
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("op", "case"), CASES)
def test_compiled(op: str, case: Any, dtype: torch.dtype, poisoned: None) -> None:
    cases = module(op, "cases")
    given = cases.inputs(case, dtype)
    expected = cases.run(module(op, "reference"), copy.deepcopy(widened(given)))
    found = cases.run(module(op, "triton"), moved(given, "cuda"))
    assert all(got.is_cuda for got in found)
    agree(found, expected, dtype)


@pytest.mark.parametrize(("op", "case"), CASES)
def test_public_function_on_cuda(op: str, case: Any) -> None:
    """A CUDA tensor goes to the kernel: the same bits, in the type that models compute in."""
    cases = module(op, "cases")
    given = cases.inputs(case, torch.bfloat16)
    public, direct = (cases.run(way, moved(copy.deepcopy(given), "cuda")) for way in (KERNELS[op], module(op, "triton")))
    for got, want in zip(public, direct, strict=True):
        assert torch.equal(got.nan_to_num(), want.nan_to_num())


def test_the_poison_is_seen(poisoned: None) -> None:
    assert torch.empty(3).isnan().all() and torch.empty_like(torch.ones(2)).isnan().all()
    with pytest.raises(AssertionError, match="NaN"):
        agree((torch.empty(3),), (torch.ones(3),), torch.bfloat16)
