"""Every Triton kernel against its slow formula, run by Triton's interpreter: `make test` calls these by themselves.

Triton reads TRITON_INTERPRET when it is first imported, and kernels that are interpreted cannot be compiled, so that these
tests have a process of their own.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from tests.kernels.test_registry import check
from tests.support.triton_kernels import TRITON_OPS, module, shared_cases

pytestmark = pytest.mark.interpreted
pytest.importorskip("triton", reason="Triton has no build for this system")

CASES = [pytest.param(op, case, id=f"{op}-{case.name}") for op in TRITON_OPS for case in shared_cases(op)]


def test_kernels_are_interpreted() -> None:
    from headrace.kernels.tile import INTERPRETED

    assert os.environ.get("TRITON_INTERPRET") == "1" and INTERPRETED.value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("op", "case"), CASES)
def test_interpreted(op: str, case: Any, dtype: torch.dtype) -> None:
    check(op, module(op, "triton"), case, dtype)
