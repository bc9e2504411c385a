"""Angles against exact functions of the angle as float32 rounds it, on every device."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
import torch
from tests.support.triton_kernels import module, moved

from headrace.kernels.angles import angles
from headrace.kernels.angles.cases import CASES, Case, inputs

WHERE = [
    pytest.param("reference", "cpu"),
    pytest.param("triton", "cpu", marks=pytest.mark.interpreted),
    pytest.param("triton", "cuda", marks=pytest.mark.gpu),
]
CLOSE = 1.2e-7
"""Two units of a float32 just below 1."""


def rounded(x: float) -> float:
    return float(struct.unpack("f", struct.pack("f", x))[0])


@pytest.mark.parametrize(("part", "device"), WHERE)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cosines_and_sines(case: Case, part: str, device: str) -> None:
    given: dict[str, Any] = inputs(case)
    turned = [[rounded(p * f) for f in given["frequencies"].tolist()] for p in case.positions]
    for found, function in zip(module("angles", part).angles(**moved(given, device)), (math.cos, math.sin), strict=True):
        expected = torch.tensor([[function(a) for a in row] for row in turned], dtype=torch.float64)
        assert found.shape == (len(case.positions), 1, case.count) and found.dtype == torch.float32
        assert torch.allclose(found.double().cpu().flatten(), expected.flatten(), rtol=0, atol=CLOSE)


def test_a_float64_model_has_the_same_angles_in_its_type() -> None:
    given = inputs(CASES[1])
    wide = angles(given["positions"], given["frequencies"], torch.float64)
    for found, expected in zip(wide, angles(**given), strict=True):
        assert found.dtype == torch.float64 and torch.equal(found, expected.double())
