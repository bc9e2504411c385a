"""The kernels for few rows and few outputs without a GPU: run on a CPU, they agree with the definition."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch
from tests.kernels.test_gpu import agree
from tests.support import cuda_on_cpu
from torch import Tensor

from headrace.kernels.linear import cuda as few_outputs
from headrace.kernels.low_bit_linear import cases, cuda, few, forms, reference
from headrace.kernels.low_bit_linear.around import (
    MOST_PARTS,
    Added,
    AddedStructure,
    Beside,
    FewOutputsStructure,
    normed_structure,
    parts_of,
    x_rows_of,
)
from headrace.kernels.low_bit_linear.forms import FewRows
from headrace.kernels.low_bit_linear.layout import tile_
from headrace.kernels.rms_norm import Activations, NormWeight, PendingNorm, values_of

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
    x = torch.randn(rows, inputs + 8, dtype=torch.float16)[:, :inputs]
    expected = reference.low_bit_linear(x.float(), packed, scale, zero, tiled=True, gated=gated)
    run = Run(form, x, (packed, scale, zero), tmp_path, gated=gated)
    for _ in range(2):
        y = nans(rows, outputs // (1 + gated))
        run(y)
        agree((y,), (expected,), x.dtype)


def nans(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.full(shape, float("nan"), dtype=dtype)


class Run:
    """few_rows compiled for one call's shapes."""

    def __init__(
        self, form: FewRows, x: Activations, weight: tuple[Tensor, Tensor, Tensor | None], folder: Path, *, gated: bool = False,
        added: bool = False, beside: bool = False,
    ) -> None:
        values = values_of(x)
        self.form, self.x, self.weight, rows = form, x, weight, len(x)
        macros = few.few_macros(
            form, forms.x_rows_of(rows), gated, resident=1, normed=isinstance(x, PendingNorm), added=added, beside=beside
        )
        source, formats = on_cpu(cuda.source("few_rows")), cuda.formats_of(values, *weight)
        self.run = cuda_on_cpu.compiled(source, "few_rows", formats | macros, folder)
        between = form.blocks(len(weight[0])) * (form.parts - 1)
        self.sums = nans(between * form.sums(forms.x_rows_of(rows)), dtype=torch.float32)
        self.raised = torch.zeros(between, dtype=torch.int32)

    def __call__(self, y: Tensor, added: Added | None = None, beside: Beside | None = None) -> None:
        values, outputs = values_of(self.x), len(self.weight[0])
        self.run(
            self.form.blocks(outputs) + (beside.blocks(self.form.warps) if beside else 0), self.form.parts, *self.weight,
            values, y, self.sums, self.raised, len(values), outputs, values.shape[1], ctypes.c_longlong(values.stride(0)),
            normed_structure(self.x), added.structure() if added else AddedStructure(),
            beside.structure(self.form.warps) if beside else FewOutputsStructure(),
        )
        assert not self.raised.any() and not (beside and beside.between[1].any())


AROUND = [  # form, rows, outputs, inputs, group, zeros: a norm before and one behind, and a product beside
    (FewRows(2, 8, 3), 1, 96, 5120, 128, False), (FewRows(4, 8, 2, 3), 8, 80, 5120, 128, False),
    (FewRows(4, 8, 2), 5, 96, 1152, 64, True),
    (FewRows(1, 8, 3), 3, 48, 1280, 32, True), (FewRows(2, 8, 3, 2), 2, 80, 640, 0, False),
]


@pytest.mark.parametrize(("form", "rows", "outputs", "inputs", "group", "zeros"), AROUND, ids=str)
def test_few_rows_between_norms(
    form: FewRows, rows: int, outputs: int, inputs: int, group: int, zeros: bool, tmp_path: Path
) -> None:
    case = cases.Case("", rows, outputs, inputs, group, zeros, True, scale=torch.float16)
    weight = cases.weight(case, torch.Generator().manual_seed(rows))
    tile_(*weight)
    x = PendingNorm(torch.randn(rows, inputs, dtype=torch.float16), torch.rand(rows, 41) * inputs / 30, 1e-3)
    residual, norm = torch.randn(rows, outputs, dtype=torch.float16), NormWeight(torch.randn(outputs), 1e-6, 1.0)
    wide = PendingNorm(x.values.float(), x.squares, x.eps)
    expected, expected_total = reference.low_bit_linear_norm(wide.normed(), *weight, residual.float(), norm, tiled=True)
    narrow = (torch.randn(32, inputs) * inputs**-0.5).half()
    run = Run(form, x, weight, tmp_path, added=True, beside=True)
    for _ in range(2):
        y, total, other = nans(rows, outputs), nans(rows, outputs), nans(rows, 32)
        squares = nans(rows, outputs // 16, dtype=torch.float32)
        between = nans(100 * 128, dtype=torch.float32), torch.zeros(100, dtype=torch.int32)
        run(y, Added(residual, norm, total, squares), Beside(narrow, other, between))
        agree((total, other), (expected_total, wide.normed() @ narrow.float().T), torch.float16)
        agree((PendingNorm(y, squares, norm.eps).normed(),), (expected.normed(),), torch.float16)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("rows", [1, 7])
def test_few_rows_behind_a_norm(rows: int, gated: bool, tmp_path: Path) -> None:
    case = cases.Case("", rows, 96, 1280, 128, False, True, scale=torch.float16)
    weight = cases.weight(case, torch.Generator().manual_seed(rows))
    tile_(*weight)
    x = PendingNorm(torch.randn(rows, 1280, dtype=torch.float16), torch.rand(rows, 20) * 100, 1e-3)
    y = nans(rows, 96 // (1 + gated))
    Run(FewRows(2, 8, 2), x, weight, tmp_path, gated=gated)(y)
    expected = reference.low_bit_linear(PendingNorm(x.values.float(), x.squares, x.eps), *weight, tiled=True, gated=gated)
    agree((y,), (expected,), y.dtype)


@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 96, 5120), (13, 32, 1152), (8, 16, 128)])
def test_few_outputs(rows: int, outputs: int, inputs: int, pending: bool, tmp_path: Path) -> None:
    weight = (torch.randn(outputs, inputs) * inputs**-0.5).half()
    x = torch.randn(rows, inputs, dtype=torch.float16)
    y = torch.full((rows, outputs), float("nan"), dtype=x.dtype)
    x_rows = x_rows_of(rows)
    norm = PendingNorm(x, torch.rand(rows, 20) * inputs / 10, 1e-3)
    normed = PendingNorm(x.float(), norm.squares, norm.eps).normed() if pending else x.float()
    macros = few_outputs.macros(False, x_rows, normed=pending)
    sums, raised = torch.full((100, 16 * x_rows), float("nan")), torch.zeros(100, dtype=torch.int32)
    run = cuda_on_cpu.compiled(on_cpu(few_outputs.source()), "few_outputs", macros, tmp_path)
    for _ in range(2):
        run(outputs // 16, parts_of(inputs, few_outputs.WARPS, MOST_PARTS), weight, x, y, sums, raised, rows, outputs, inputs,
            ctypes.c_longlong(inputs), normed_structure(norm if pending else x))
        agree((y,), (normed @ weight.float().T,), x.dtype)
        assert not raised.any()
        y.fill_(float("nan"))
