"""Few outputs for few rows on NVIDIA cards, where the library's product is slow: it adds parts of sums in one more kernel.

CUDA C++ beside low_bit_linear's, whose prelude it shares; started early, so that its weights are there when x is.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from headrace.kernels import nvrtc
from headrace.kernels.card import card
from headrace.kernels.cuda_function import compiled, with_primitives
from headrace.kernels.low_bit_linear import cuda as low_bit
from headrace.kernels.low_bit_linear.around import (
    MOST_OUTPUTS,
    MOST_PARTS,
    MOST_ROWS,
    few_outputs_between,
    normed_structure,
    parts_of,
    x_rows_of,
)
from headrace.kernels.low_bit_linear.forms import few_outputs_bytes
from headrace.kernels.low_bit_linear.layout import INPUTS, ROWS
from headrace.kernels.rms_norm import Activations, PendingNorm, values_of

WARPS = 8


def suits(x: Activations, weight: Tensor) -> bool:
    (outputs, inputs), values = weight.shape, values_of(x)
    few = outputs <= MOST_OUTPUTS and len(x) <= MOST_ROWS and outputs % ROWS == 0 and inputs % INPUTS == 0
    sixteen = values.dtype == weight.dtype and weight.dtype in (torch.float16, torch.bfloat16)
    here = values.is_cuda and card(values.device).capability >= 80
    return few and sixteen and here and weight.is_contiguous() and nvrtc.available()


def linear(activations: Activations, weight: Tensor) -> Tensor:
    x = values_of(activations)
    (rows, inputs), outputs = x.shape, len(weight)
    y = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    if not rows:
        return y
    if x.stride(1) != 1 or x.stride(0) % 8 or x.data_ptr() % 16:
        x = x.contiguous()
    index = torch.cuda.current_device() if x.device.index is None else x.device.index
    x_rows = x_rows_of(rows)
    chosen = macros(x.dtype == torch.bfloat16, x_rows, normed=isinstance(activations, PendingNorm))
    kernel = compiled(source(), "few_outputs", chosen, 32 * WARPS, few_outputs_bytes(WARPS, x_rows), x.device)
    grid = outputs // ROWS, parts_of(inputs, WARPS, MOST_PARTS), -(-rows // x_rows)
    kernel(grid, weight, x, y, *few_outputs_between(index), rows, outputs, inputs, ctypes.c_longlong(x.stride(0)),
           normed_structure(activations))
    return y


def macros(bf16: bool, x_rows: int, *, normed: bool = False) -> dict[str, int]:
    formats = {"BF16": int(bf16), "SCALE_BF16": 0, "BITS": 16, "GROUP": 0, "ZEROS": 0}
    return formats | {"WARPS": WARPS, "X_ROWS": x_rows, "NORMED": int(normed)}


@cache
def source() -> str:
    shared = (Path(low_bit.__file__).parent / file for file in ("prelude.cuh", "around.cuh", "few_outputs.cuh"))
    return with_primitives(*shared, Path(__file__).parent / "few_outputs.cu")
