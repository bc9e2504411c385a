"""The kernels for few rows and few outputs without a GPU: run on a CPU, they agree with the definition."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch
from tests.kernels.test_gpu import agree
from tests.support import cuda_on_cpu

from headrace.kernels.linear import cuda as few_outputs
from headrace.kernels.low_bit_linear import cases, cuda, forms, reference
from headrace.kernels.low_bit_linear.forms import FewRows
from headrace.kernels.low_bit_linear.layout import tile_

pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")
SUPPORT = Path(cuda_on_cpu.__file__).parent


def on_cpu(source: str) -> str:
    """Without what is assembly, or is there already."""
    head = r"^(?:template <[^>]*> )?__device__ __forceinline__ [^{;]*"
    functions = re.compile(head + r"\{(?:.*\}$|[^\n]*\n(?:.*\n)*?\}$)", re.MULTILINE)
    kept = functions.sub(lambda found: "" if "asm" in found[0] else found[0], source)
    kept = re.sub(r"extern __shared__ .*uint4 shared\[\];", "uint4* const shared = memory;", kept)
    kept = re.sub(r"^typedef unsigned (int u32|short u16);\n", "", kept, flags=re.MULTILINE)
    kept = re.sub(r"\brows\b", "its_rows", kept)  # the harness has rows of blocks
    return f'#include "{SUPPORT / "prelude_on_cpu.hpp"}"\n' + kept


RUNS = [  # form, gated, rows, outputs, inputs, group, zeros
    (FewRows(2, 8, 3), True, 1, 96, 2560, 128, False), (FewRows(2, 8, 2, 2), True, 3, 160, 2304, 64, True),
    (FewRows(4, 8, 2, 3), False, 8, 80, 5120, 128, False), (FewRows(4, 8, 2), True, 7, 192, 1152, 32, True),
    (FewRows(2, 8, 3, 3), False, 2, 48, 5120, 128, False), (FewRows(1, 8, 3), False, 5, 48, 1280, 32, True),
    (FewRows(1, 8, 4), False, 4, 16, 384, 384, False), (FewRows(4, 8, 2), True, 2, 64, 1280, 1280, False),
    (FewRows(2, 8, 3, 2), False, 1, 80, 640, 0, False),
    (FewRows(4, 8, 2, 4), False, 6, 64, 512, 64, False),
]


@pytest.mark.parametrize(("form", "gated", "rows", "outputs", "inputs", "group", "zeros"), RUNS, ids=str)
def test_few_rows(
    form: FewRows, gated: bool, rows: int, outputs: int, inputs: int, group: int, zeros: bool, tmp_path: Path
) -> None:
    case = cases.Case("", rows, outputs, inputs, group, zeros, True, scale=torch.float16)
    packed, scale, zero = cases.weight(case, torch.Generator().manual_seed(rows))
    tile_(packed, scale, zero)
    x, x_rows = torch.randn(rows, inputs + 8, dtype=torch.float16)[:, :inputs], forms.x_rows_of(rows)
    expected = reference.low_bit_linear(x.float(), packed, scale, zero, tiled=True, gated=gated)
    macros = cuda.formats_of(x, packed, scale, zero) | cuda.few_macros(form, x_rows, gated)
    run = cuda_on_cpu.compiled(on_cpu(cuda.source("few_rows")), "few_rows", macros, tmp_path)
    between = form.blocks(outputs) * (form.parts - 1)
    sums, raised = torch.full((between * form.sums(x_rows),), float("nan")), torch.zeros(between, dtype=torch.int32)
    for _ in range(2):
        y = torch.full((rows, outputs // (1 + gated)), float("nan"), dtype=x.dtype)
        run(form.blocks(outputs), form.parts, packed, scale, zero, x, y, sums, raised, rows, outputs, inputs,
            ctypes.c_longlong(x.stride(0)))
        agree((y,), (expected,), x.dtype)
        assert not raised.any()


@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 96, 5120), (13, 32, 1152), (8, 16, 128)])
def test_few_outputs(rows: int, outputs: int, inputs: int, tmp_path: Path) -> None:
    weight = (torch.randn(outputs, inputs) * inputs**-0.5).half()
    x = torch.randn(rows, inputs, dtype=torch.float16)
    y = torch.full((rows, outputs), float("nan"), dtype=x.dtype)
    x_rows = few_outputs.x_rows_of(rows)
    sums, raised = torch.full((100, 16 * x_rows), float("nan")), torch.zeros(100, dtype=torch.int32)
    run = cuda_on_cpu.compiled(on_cpu(few_outputs.source()), "few_outputs", few_outputs.macros(False, x_rows), tmp_path)
    for _ in range(2):
        run(outputs // 16, few_outputs.parts_of(inputs), weight, x, y, sums, raised, rows, outputs, inputs,
            ctypes.c_longlong(inputs))
        agree((y,), (x.float() @ weight.float().T,), x.dtype)
        assert not raised.any()
        y.fill_(float("nan"))
