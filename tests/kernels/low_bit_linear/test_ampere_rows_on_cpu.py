"""The kernel for 17 rows and more without wgmma, run on a CPU: it agrees with the definition, and leaves no sum behind."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from tests.kernels.low_bit_linear.test_few_rows_on_cpu import on_cpu
from tests.kernels.test_gpu import agree
from tests.support import cuda_on_cpu

from headrace.kernels.low_bit_linear import cases, cuda, reference, tile_forms
from headrace.kernels.low_bit_linear.layout import tile_
from headrace.kernels.low_bit_linear.tile_forms import AmpereRows, Share

pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")
RUNS = [  # form, workers and whole tiles of each, rows, outputs, inputs, group, zeros
    (AmpereRows(32, 2, 3), (2, 1), 20, 272, 512, 128, False), (AmpereRows(64, 2, 2), (3, 0), 40, 272, 512, 32, True),
    (AmpereRows(64, 4, 3), (3, 0), 70, 144, 384, 64, True), (AmpereRows(32, 4, 4), (5, 0), 17, 144, 384, 0, False),
    (AmpereRows(64, 4, 2), (1, 1), 64, 128, 256, 256, False),
]


@pytest.mark.parametrize(("form", "work", "rows", "outputs", "inputs", "group", "zeros"), RUNS, ids=str)
def test_ampere_rows(
    form: AmpereRows, work: tuple[int, int], rows: int, outputs: int, inputs: int, group: int, zeros: bool, tmp_path: Path
) -> None:
    """A block that waits for others' sums comes after them here. Tiles whose blocks wait for each other need a GPU."""
    case = cases.Case("", rows, outputs, inputs, group, zeros, True, scale=torch.float16)
    packed, scale, zero = cases.weight(case, torch.Generator().manual_seed(rows))
    tile_(packed, scale, zero)
    x = torch.randn(rows, inputs + 8, dtype=torch.float16)[:, :inputs]
    expected = reference.low_bit_linear(x.float(), packed, scale, zero, tiled=True)
    share = Share(*work, split=False)
    macros = cuda.formats_of(x, packed, scale, zero) | cuda.ampere_macros(form, share) | {"BACKWARDS": 1}
    run = cuda_on_cpu.compiled(on_cpu(cuda.source("ampere_rows")), "ampere_rows", macros, tmp_path)
    y = torch.full((rows, outputs), float("nan"), dtype=x.dtype)
    sums = torch.full((2 * share.workers * form.block_rows * form.block_outputs,), -1, dtype=torch.int32)
    run(share.workers, 1, packed, scale, zero, x, y, sums, rows, outputs, inputs, ctypes.c_longlong(x.stride(0)), share.waves,
        tile_forms.row_band(form.block_rows))
    agree((y,), (expected,), x.dtype)
    assert (sums == -1).all()
