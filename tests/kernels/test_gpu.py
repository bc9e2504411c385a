"""Every Triton kernel compiled, over its operation's cases, against the float32 reference on the same rounded inputs.

What a kernel allocates holds NaN before it runs, so that an element it does not write is seen.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.kernels.test_registry import WHOLE
from tests.support.triton_kernels import TRITON_OPS, module, moved, shared_cases, widened
from torch import Tensor

from headrace.kernels import KERNELS

pytestmark = pytest.mark.gpu

# Of rms(reference): the largest and the mean error that a kernel may have. An element whose own rounding is coarser than that
# may be off by one unit of its last place instead: bf16's is 2 % of the rms for one of 2.6 rms.
LARGEST = {torch.bfloat16: 2e-2, torch.float16: 2e-2, torch.float32: 1e-4}
MEAN = {torch.bfloat16: 3e-3, torch.float16: 3e-3, torch.float32: 1e-5}
CASES = [pytest.param(op, case, id=f"{op}-{case.name}") for op in TRITON_OPS for case in shared_cases(op)]
BY_CUDA = ("gated_delta_verify-wide-heads",)
"""Cases that the public function does not give to Triton; their kernels' own tests compare the two."""


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.empty and its kin return memory full of NaN, of the largest integer, or of True."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch, "empty_strided"), (Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, _poisoning(getattr(owner, name)))
    yield


def _poisoning(allocate: Any) -> Any:
    def allocate_poisoned(*args: Any, **kwargs: Any) -> Tensor:
        memory: Tensor = allocate(*args, **kwargs)
        return memory.fill_(_poison(memory.dtype))

    return allocate_poisoned


def _poison(dtype: torch.dtype) -> float:
    if dtype.is_floating_point:
        return float("nan")
    return 1 if dtype == torch.bool else torch.iinfo(dtype).max


def agree(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        assert got.shape == want.shape
        if want.dtype in WHOLE:
            assert torch.equal(got, want.to(got)), "ids, places and counts are exact"
        got, want = got.double().cpu(), want.double().cpu()
        assert torch.equal(got.isnan(), want.isnan()), "NaN where there is none in the reference, or the reverse"
        if want.numel():
            _agree_closely(got.nan_to_num(), want.nan_to_num(), dtype)


def _agree_closely(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    rms, error = float(want.square().mean().sqrt()), (got - want).abs()
    allowed = (torch.finfo(dtype).eps * want.abs()).clamp(min=LARGEST[dtype] * rms)
    assert float(error.mean()) <= MEAN[dtype] * rms, f"mean error {float(error.mean()) / rms:.3%} of rms"
    worst = int((error - allowed).argmax())
    assert bool((error <= allowed).all()), f"{float(got.flatten()[worst])} for {float(want.flatten()[worst])}, rms {rms}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("op", "case"), CASES)
def test_compiled(op: str, case: Any, dtype: torch.dtype, poisoned: None) -> None:
    cases = module(op, "cases")
    given = cases.inputs(case, dtype)
    expected = cases.run(module(op, "reference"), copy.deepcopy(widened(given)))
    found = cases.run(module(op, "triton"), moved(given, "cuda"))
    assert all(got.is_cuda for got in found)
    agree(found, expected, dtype)


@pytest.mark.parametrize(("op", "case"), [case for case in CASES if case.id not in BY_CUDA])
def test_public_function_on_cuda(op: str, case: Any) -> None:
    """A CUDA tensor goes to the kernel: the same bits, in the type that models compute in."""
    cases = module(op, "cases")
    given = cases.inputs(case, torch.bfloat16)
    public, direct = (cases.run(way, moved(copy.deepcopy(given), "cuda")) for way in (KERNELS[op], module(op, "triton")))
    for got, want in zip(public, direct, strict=True):
        assert torch.equal(got.nan_to_num(), want.nan_to_num())


def test_the_poison_is_seen(poisoned: None) -> None:
    assert torch.empty(3).isnan().all() and torch.empty_like(torch.ones(2)).isnan().all()
    assert torch.ones(2).new_empty(3, dtype=torch.bool).all() and torch.empty(1, dtype=torch.int8).item() == 127
    with pytest.raises(AssertionError, match="NaN"):
        agree((torch.empty(3),), (torch.ones(3),), torch.bfloat16)
