"""Arithmetic on tiles against PyTorch's conversions, interpreted and compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

SIZE = 256
WHERE = [pytest.param("cpu", marks=pytest.mark.interpreted), pytest.param("cuda", marks=pytest.mark.gpu)]
BOTH = pytest.mark.parametrize("device", WHERE)


def kernels() -> Any:
    pytest.importorskip("triton", reason="Triton has no build for this system")
    from tests.kernels import tile_kernels

    return tile_kernels


def applied(name: str, x: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    """A kernel's result for every element of x [N], N a multiple of SIZE."""
    out = torch.zeros(x.shape, dtype=dtype, device=device)
    getattr(kernels(), name)[(x.numel() // SIZE,)](x.to(device), out, SIZE)
    return out.cpu()


def numbers() -> Tensor:
    """float32 of every size and both signs, and what lies halfway between neighbouring e4m3 and bf16 numbers."""
    rng = torch.Generator().manual_seed(0)
    spread = torch.randn(2048, generator=rng) * torch.exp2(torch.randint(-14, 12, (2048,), generator=rng).float())
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    halfway = torch.cat([codes, (codes[1:] + codes[:-1]) / 2, torch.tensor([464.0, 465.0, 480.0, 1e9, float("inf"), 0.0])])
    bf16_halfway = torch.arange(1, 500).float() + 2.0**-8 * torch.arange(499)
    found = torch.cat([spread, halfway, -halfway, bf16_halfway])
    return torch.cat([found, torch.zeros(-len(found) % SIZE)])


@BOTH
def test_to_e4m3_rounds_to_nearest_even_and_saturates(device: str) -> None:
    x = numbers()
    expected = x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(applied("to_e4m3", x, torch.uint8, device), expected)
    nan = applied("to_e4m3", torch.full((SIZE,), float("nan")), torch.uint8, device)
    assert bool(((nan & 0x7F) == 0x7F).all())


@BOTH
def test_e4m3_reads_every_code(device: str) -> None:
    codes = torch.arange(256).to(torch.uint8)
    expected = codes.view(torch.float8_e4m3fn).to(torch.float16)
    expected[[0x7F, 0xFF]] = torch.tensor([480.0, -480.0], dtype=torch.float16)
    found = applied("e4m3", codes, torch.float16, device)
    assert torch.equal(found, expected) and torch.equal(found.signbit(), expected.signbit())


@BOTH
def test_round_even(device: str) -> None:
    x = torch.cat([torch.arange(-512, 512) / 4, torch.randn(1024, generator=torch.Generator().manual_seed(1)) * 1e6])
    assert torch.equal(applied("round_even", x, torch.int32, device), x.round().int())


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_store_rounds_to_nearest_even(dtype: torch.dtype, device: str) -> None:
    x = numbers()
    x[0] = float("nan")
    assert torch.equal(applied("store", x, dtype, device).nan_to_num(), x.to(dtype).nan_to_num())


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_dot_accumulates_in_float32(dtype: torch.dtype, device: str) -> None:
    a, b = torch.randn(2, 32, 32, generator=torch.Generator().manual_seed(2)).to(dtype)
    out = torch.zeros(32, 32, device=device)
    kernels().dot[(1,)](a.to(device), b.to(device), out, 32)
    expected = a.double() @ b.double()
    assert float((out.cpu() - expected).abs().max()) < 1e-5 * float(expected.abs().max())
