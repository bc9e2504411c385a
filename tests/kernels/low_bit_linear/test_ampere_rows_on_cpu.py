"""The kernel for 17 rows and more without wgmma, run on a CPU: it agrees with the definition, and leaves no sum behind."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from tests.kernels.low_bit_linear.test_few_rows_on_cpu import on_cpu
from tests.kernels.test_gpu import agree
from tests.support import cuda_on_cpu
from torch import Tensor

from headrace.kernels.low_bit_linear import cases, cuda, reference, tile_forms
from headrace.kernels.low_bit_linear.layout import tile_
from headrace.kernels.low_bit_linear.tile_forms import AmpereRows, Share

pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")
RUNS = [  # form, workers and whole tiles of each, rows, outputs, inputs, group, zeros
    (AmpereRows(32, 3), (2, 1), 20, 272, 512, 128, False), (AmpereRows(64, 2), (3, 0), 40, 272, 512, 32, True),
    (AmpereRows(64, 3), (3, 0), 70, 144, 384, 64, True), (AmpereRows(32, 4), (3, 0), 17, 144, 384, 0, False),
    (AmpereRows(64, 2), (1, 1), 64, 128, 256, 256, False), (AmpereRows(64, 3), (2, 0), 33, 128, 384, 128, True),
    (AmpereRows(16, 3), (2, 1), 9, 272, 512, 128, False), (AmpereRows(16, 4), (3, 0), 16, 144, 384, 64, True),
]


@pytest.mark.parametrize(("form", "work", "rows", "outputs", "inputs", "group", "zeros"), RUNS, ids=str)
def test_ampere_rows(
    form: AmpereRows, work: tuple[int, int], rows: int, outputs: int, inputs: int, group: int, zeros: bool, tmp_path: Path
) -> None:
    """A block that waits for others' sums comes after them here. Tiles whose blocks wait for each other need a GPU."""
    case = cases.Case("", rows, outputs, inputs, group, zeros, True, scale=torch.float16)
    packed, scale, zero = cases.weight(case, torch.Generator().manual_seed(rows))
    tile_(packed, scale, zero)
    sizes = torch.logspace(-3, 3, rows, dtype=torch.float16)[:, None]
    x = torch.randn(rows, inputs + 8, dtype=torch.float16)[:, :inputs] * sizes
    expected = reference.low_bit_linear(x.float(), packed, scale, zero, tiled=True)
    share = Share(*work, split=False)
    formats = cuda.formats_of(x, packed, scale, zero)
    macros = formats | cuda.ampere_macros(form, share) | {"BACKWARDS": 1}
    run = cuda_on_cpu.compiled(on_cpu(cuda.source("ampere_rows")), "ampere_rows", macros, tmp_path)
    y = torch.full((rows, outputs), float("nan"), dtype=x.dtype)
    sums = torch.full((2 * share.workers * form.block_rows * form.block_outputs,), -1, dtype=torch.int32)
    run(share.workers, 1, packed, scale, zero, *in_halves(x, formats, tmp_path), y, sums, rows, outputs, inputs, share.waves,
        tile_forms.row_band(form.block_rows))
    agree((y,), (expected,), x.dtype)
    assert (sums == -1).all()


def in_halves(x: Tensor, formats: dict[str, int], folder: Path) -> tuple[Tensor, Tensor]:
    halves, units = torch.full(x.shape, float("nan"), dtype=torch.float16), torch.full((len(x) + 63,), float("nan"))
    macros = formats | cuda.halves_macros(x.shape[1]) | {"BLOCK_THREADS": 512}
    run = cuda_on_cpu.compiled(on_cpu(cuda.source("halves")), "halves", macros, folder)
    run(len(x), 1, x, halves, units, x.shape[1], ctypes.c_longlong(x.stride(0)))
    return halves, units


@pytest.mark.parametrize("bits", [4, 8])
def test_no_sum_of_a_group_overflows(bits: int, tmp_path: Path) -> None:
    """Each row becomes fp16 without loss, and is large, but 128 products of the largest weight are not too large."""
    largest = torch.tensor([65504.0, 1.0, 3.1, 6e-5, 0.0])
    x = (torch.rand(5, 256).clamp(min=0.05) * largest[:, None]).half()
    x[:, 7] = largest.half()
    halves, units = in_halves(x, {"BF16": 0, "SCALE_BF16": 0, "BITS": bits, "GROUP": 128 * (bits == 4), "ZEROS": 0}, tmp_path)
    weight, unit = (15, 2.0**-9) if bits == 4 else (128, 1.0)
    sums = 128 * weight * unit * halves.double().abs().amax(1)
    assert (sums[:4] > 15_000).all() and (sums < 65_504).all()
    assert torch.equal(halves.double() * units[:5, None].double() * unit, x.double())
