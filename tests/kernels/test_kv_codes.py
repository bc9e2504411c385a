"""8-bit keys and values: how far a code is from its number."""

from __future__ import annotations

import pytest
import torch

from headrace.kernels.kv_write.codes import LARGEST, decode, encode

SHAPE = (50, 3, 64)


@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_int8_is_within_half_a_step(size: float) -> None:
    x = size * torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    codes, scales = encode(x, torch.int8)
    step = scales.float()[..., None]
    # The scale is rounded to fp16: the largest element may be one rounding of it beyond the last code.
    assert ((decode(codes, scales, torch.float32) - x).abs() <= step * (0.5 + 127 * 2.0**-11)).all()
    assert (codes.abs().amax(-1) >= 126).all()


def test_e4m3_is_within_half_a_step_of_its_mantissa() -> None:
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    codes, scales = encode(x, torch.float8_e4m3fn)
    error = (decode(codes, scales, torch.float32) - x).abs()
    smallest = scales.float()[..., None] * 2.0**-9  # a subnormal code's unit
    assert (error <= torch.maximum(x.abs() * (2.0**-4 + 2.0**-10), smallest)).all()


@pytest.mark.parametrize("dtype", LARGEST)
def test_zeros_and_the_largest_numbers(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0, 0.0], [3e38, -1.0], [1e-12, 0.0]])
    codes, scales = encode(x, dtype)
    found = decode(codes, scales, torch.float32)
    assert torch.equal(found[0], torch.zeros(2)) and found.isfinite().all()
    assert float(found[1, 0]) == 65504 * LARGEST[dtype]
    assert float(found[2, 0]) < 1e-6


def test_without_scales_numbers_are_themselves() -> None:
    x = torch.randn(4, 2, 8).half()
    assert torch.equal(decode(x, None, torch.float32), x.float())
