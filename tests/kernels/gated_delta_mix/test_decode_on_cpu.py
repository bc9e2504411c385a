"""The kernel for rows of one token without a GPU: run on a CPU, it agrees with the definition."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from tests.kernels.gated_delta_mix.test_cuda import weights, widened
from tests.kernels.test_gpu import agree
from tests.support import cuda_on_cpu
from torch import Tensor

from headrace.kernels.gated_delta_mix import MixWeights, cuda, reference
from headrace.kernels.rows import PackedRows

pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")
OTHERS = """
static float __fdividef(float x, float y) { return x / y; }
static u32 atomicAdd(u32* counter, u32 x) { return (*counter += x) - x; }
"""
SHAPES = ((2, 6, 4), (1, 1, 2), (1, 2, 5))  # key heads, value heads, taps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_of_one_token(shape: tuple[int, int, int], dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(7)
    (key_heads, heads, taps), rows = shape, 2
    w, values = weights(*shape, dtype), heads * cuda.HEAD_DIM
    qkvz = torch.cat([torch.randn(rows, len(w.conv)), 1 + 0.3 * torch.randn(rows, values)], 1).to(dtype)
    ab, tails = torch.randn(rows, 2 * heads).to(dtype), torch.randn(4, taps - 1, len(w.conv)).to(dtype)
    states, slots = torch.randn(4, heads, cuda.HEAD_DIM, cuda.HEAD_DIM).half(), torch.tensor([2, 0])
    wide = tails.float(), states.float()
    expected = reference.gated_delta_mix(
        qkvz.float(), ab.float(), widened(w), *wide, slots, PackedRows((1,) * rows, torch.device("cpu"))
    )
    out = torch.full((rows, values), float("nan"), dtype=dtype)
    decode(qkvz, ab, w, tails, states, slots, out, cuda.macros(dtype, key_heads, heads, taps, 90), tmp_path)
    agree((out, states), (expected, wide[1]), dtype)
    assert torch.equal(tails.float(), wide[0])


def test_what_is_added_to_a_state_is_as_exact_as_in_float32(tmp_path: Path) -> None:
    """Errors of the state are those of its own rounding, whatever is forgotten."""
    torch.manual_seed(3)
    w, dtype = weights(1, 1, 2, torch.float16), torch.float16
    qkvz, ab, tails = torch.randn(1, 512).half(), torch.tensor([[-3.0, 3.0]]).half(), torch.randn(1, 1, 384).half()
    states = (torch.randn(1, 1, 128, 128) * 2.0 ** torch.randint(-6, 6, (128, 1))).half()
    wide, slots, rows = (tails.double(), states.double()), torch.tensor([0]), PackedRows((1,), torch.device("cpu"))
    exact = MixWeights(w.conv.double(), w.a_log.double(), w.dt_bias.double(), w.norm.double(), w.eps)
    reference.gated_delta_mix(qkvz.double(), ab.double(), exact, *wide, slots, rows)
    decode(qkvz, ab, w, tails, states, slots, qkvz.new_zeros(1, 128), cuda.macros(dtype, 1, 1, 2, 90), tmp_path)
    error = (states.double() - wide[1]).abs() - wide[1].abs() * 2.0**-11
    assert (error <= 2e-5 * wide[1].square().mean(-1, keepdim=True).sqrt()).all()


def decode(
    qkvz: Tensor, ab: Tensor, w: MixWeights, tails: Tensor, states: Tensor, slots: Tensor, out: Tensor, macros: dict[str, int],
    folder: Path,
) -> None:
    source = OTHERS + (Path(cuda.__file__).parent / "decode.cu").read_text()
    run = cuda_on_cpu.compiled(source, "decode", macros | {"BLOCK_THREADS": cuda.THREADS}, folder)
    floats, strides = map(ctypes.c_float, (w.eps, cuda.HEAD_DIM**-0.5)), map(ctypes.c_longlong, (qkvz.stride(0), ab.stride(0)))
    tensors = qkvz, ab, w.conv.T.contiguous(), w.a_log, w.dt_bias, w.norm, tails, states, slots, None, None, out
    run(states.shape[1], len(qkvz), *tensors, 0, 0, len(states), *floats, *strides)
