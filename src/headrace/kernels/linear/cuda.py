"""Few outputs for few rows on NVIDIA cards, where the library's product is slow: it adds parts of sums in one more kernel.

CUDA C++ beside low_bit_linear's, whose prelude it shares; started early, so that its weights are there when x is.
"""

from __future__ import annotations

import ctypes
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from headrace.kernels import nvrtc
from headrace.kernels.card import card
from headrace.kernels.cuda_function import CudaFunction
from headrace.kernels.low_bit_linear import cuda as low_bit
from headrace.kernels.low_bit_linear.layout import INPUTS, ROWS

MOST_OUTPUTS, MOST_ROWS = 256, 64
WARPS = 8
_MOST_PARTS = 8
_STAGE_BYTES_OF_A_ROW = 2 * INPUTS


def suits(x: Tensor, weight: Tensor) -> bool:
    outputs, inputs = weight.shape
    few = outputs <= MOST_OUTPUTS and len(x) <= MOST_ROWS and outputs % ROWS == 0 and inputs % INPUTS == 0
    sixteen = x.dtype == weight.dtype and x.dtype in (torch.float16, torch.bfloat16)
    return few and sixteen and x.is_cuda and weight.is_contiguous() and card(x.device).capability >= 80 and nvrtc.available()


def linear(x: Tensor, weight: Tensor) -> Tensor:
    (rows, inputs), outputs = x.shape, len(weight)
    y = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    if not rows:
        return y
    if x.stride(1) != 1 or x.stride(0) % 8 or x.data_ptr() % 16:
        x = x.contiguous()
    index = torch.cuda.current_device() if x.device.index is None else x.device.index
    x_rows = x_rows_of(rows)
    kernel = _function(x.dtype == torch.bfloat16, x_rows, index, card(x.device).capability)
    grid = outputs // ROWS, parts_of(inputs), -(-rows // x_rows)
    kernel(grid, weight, x, y, *_between_blocks(index), rows, outputs, inputs, ctypes.c_longlong(x.stride(0)))
    return y


def x_rows_of(rows: int) -> int:
    """Rows of x of a block."""
    return 8 if rows <= 8 else 16


def parts_of(inputs: int) -> int:
    """Parts that the inputs are cut into: of a chunk for each warp, if they are not too many."""
    return min(_MOST_PARTS, -(-inputs // (INPUTS * WARPS)))


def macros(bf16: bool, x_rows: int) -> dict[str, int]:
    return {"BF16": int(bf16), "SCALE_BF16": 0, "BITS": 16, "GROUP": 0, "ZEROS": 0, "WARPS": WARPS, "X_ROWS": x_rows}


def shared_bytes(x_rows: int) -> int:
    return WARPS * (ROWS + x_rows) * _STAGE_BYTES_OF_A_ROW


@cache
def source() -> str:
    prelude = Path(low_bit.__file__).parent / "prelude.cuh"
    return prelude.read_text() + (Path(__file__).parent / "few_outputs.cu").read_text()


@cache
def _function(bf16: bool, x_rows: int, device: int, capability: int) -> CudaFunction:
    code = partial(nvrtc.compiled, source(), macros(bf16, x_rows), f"sm_{capability}")
    return CudaFunction(code, "few_outputs", 32 * WARPS, shared_bytes(x_rows), early=True)


@cache
def _between_blocks(device: int) -> tuple[Tensor, Tensor]:
    """The sums that blocks leave for each other, and their flags, which are zero between kernels. For one stream at a time."""
    sums, blocks = between_blocks()
    return torch.empty(sums, dtype=torch.float32, device=f"cuda:{device}"), torch.zeros(
        blocks, dtype=torch.int32, device=f"cuda:{device}"
    )


def between_blocks() -> tuple[int, int]:
    """Numbers that blocks leave for each other at most, and such blocks."""
    blocks = MOST_OUTPUTS // ROWS * MOST_ROWS // x_rows_of(MOST_ROWS) * (_MOST_PARTS - 1)
    return blocks * ROWS * x_rows_of(MOST_ROWS), blocks
