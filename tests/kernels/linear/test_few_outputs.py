"""The CUDA kernel for few outputs: it compiles for every card within its means, and on a GPU agrees with float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.kernels.low_bit_linear.test_cuda import needs_nvrtc, resources
from tests.kernels.test_gpu import agree, poisoned  # noqa: F401

from headrace.kernels import nvrtc
from headrace.kernels.linear import cuda, linear
from headrace.kernels.low_bit_linear.around import MOST_PARTS, parts_of
from headrace.kernels.low_bit_linear.forms import few_outputs_bytes
from headrace.kernels.rms_norm import PendingNorm
from headrace.kernels.variant import SHARED_BYTES, TARGETS


@needs_nvrtc
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("x_rows", [8, 16])
@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("target", TARGETS)
def test_it_compiles_for_every_card(target: int, bf16: bool, x_rows: int, normed: bool, tmp_path: Path) -> None:
    macros = cuda.macros(bf16, x_rows, normed=normed)
    stack, static = resources(nvrtc.compiled(cuda.source(), macros, f"sm_{target}"), tmp_path)
    assert stack == 0
    assert few_outputs_bytes(cuda.WARPS, x_rows) + static <= SHARED_BYTES[target]


def test_every_part_of_the_inputs_has_its_chunks() -> None:
    assert [parts_of(inputs, cuda.WARPS, MOST_PARTS) for inputs in (128, 1024, 1152, 5120, 2**20)] == [1, 1, 2, 5, 8]


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [0, 1, 3, 8, 9, 16, 17, 64])
@pytest.mark.parametrize("shape", [(96, 5120), (16, 128), (256, 1152), (48, 17_408)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_agrees_on_a_gpu(shape: tuple[int, int], rows: int, dtype: torch.dtype, poisoned: None) -> None:  # noqa: F811
    outputs, inputs = shape
    weight = (torch.randn(outputs, inputs, device="cuda") * inputs**-0.5).to(dtype)
    x = torch.randn(rows, inputs + 8, device="cuda").to(dtype)[:, :inputs]
    assert cuda.suits(x, weight)
    found = linear(x, weight)
    agree((found,), (x.float() @ weight.float().T,), dtype)
    again = [linear(x, weight) for _ in range(20)]
    assert all(torch.equal(found, other) for other in again)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [3, 16, 40])
def test_what_a_norm_is_to_be_of_on_a_gpu(rows: int, poisoned: None) -> None:  # noqa: F811
    weight = (torch.randn(96, 5120, device="cuda") * 5120**-0.5).bfloat16()
    x = PendingNorm(torch.randn(rows, 5120, device="cuda").bfloat16(), torch.rand(rows, 320, device="cuda") * 32, 1e-6)
    wide = PendingNorm(x.values.float(), x.squares, x.eps).normed()
    agree((linear(x, weight),), (wide @ weight.float().T,), weight.dtype)


@pytest.mark.gpu
def test_replays_on_a_gpu() -> None:
    """Flags between blocks are as they were after every replay."""
    weight = torch.randn(96, 5120, device="cuda", dtype=torch.bfloat16) / 70
    x = torch.randn(5, 5120, device="cuda", dtype=torch.bfloat16)
    linear(x, weight)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = [linear(x, weight) for _ in range(10)]
    for _ in range(50):
        x.normal_()
        graph.replay()
    expected = linear(x, weight)
    assert all(torch.equal(y, expected) for y in found)
