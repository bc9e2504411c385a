"""low_bit_linear on NVIDIA cards of compute capability 8.0 and later: CUDA C++ on tiled weights, compiled by NVRTC.

Up to 8 rows one kernel reads the weights at the memory's rate; up to MOST_FUSED_ROWS another decodes them on the way into the
tensor cores; for more, pieces of the weight are decoded into a workspace of WORKSPACE_BYTES for the library's matrix product.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from headrace.kernels import nvrtc
from headrace.kernels.card import card
from headrace.kernels.cuda_function import CudaFunction
from headrace.kernels.low_bit_linear.layout import INPUTS, ROWS

MOST_FEW_ROWS = 8
MOST_FUSED_ROWS = 256
WORKSPACE_BYTES = 64 * 2**20
_BLOCK_OUTPUTS = 128
_MOST_PARTS = 8


def suits(x: Tensor, packed: Tensor, scale: Tensor, tiled: bool) -> bool:
    sixteen = x.dtype in (torch.float16, torch.bfloat16) and scale.dtype in (torch.float16, torch.bfloat16)
    return tiled and x.is_cuda and sixteen and card(x.device).capability >= 80 and nvrtc.available()


def low_bit_linear(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """As the public function, for tiled weights."""
    y = torch.empty(len(x), len(packed), dtype=x.dtype, device=x.device)
    if not len(x):
        return y
    if x.stride(1) != 1 or x.stride(0) % 8 or x.data_ptr() % 16:
        x = x.contiguous()
    if len(x) <= MOST_FEW_ROWS:
        _few_rows(x, packed, scale, zero, y)
    elif len(x) <= MOST_FUSED_ROWS:
        _many_rows(x, packed, scale, zero, y)
    else:
        _through_workspace(x, packed, scale, zero, y)
    return y


# How each kernel is built for a shape


@dataclass(frozen=True, slots=True)
class FewRows:
    """Tiles of 16 outputs a warp, warps of a block (which share the inputs), chunks of 128 inputs in flight for each."""

    tiles: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class ManyRows:
    """Eights of rows a block, chunks of 128 inputs in flight, parts that the inputs are cut into."""

    columns: int
    stages: int
    parts: int


def few_rows_form(outputs: int, inputs: int, bits: int) -> FewRows:
    tiles = 1 if bits == 8 or outputs < 12_288 else 2
    return FewRows(tiles, 8, 4 if bits == 4 else 3)


def many_rows_form(rows: int, outputs: int, inputs: int, formats: Mapping[str, int], processors: int, limit: int) -> ManyRows:
    """limit: bytes of shared memory that a block may have."""
    columns = 2 if rows <= 16 else 4 if rows <= 32 else 8
    chunks, blocks = inputs // INPUTS, -(-outputs // _BLOCK_OUTPUTS) * -(-rows // (8 * columns))
    parts = min(_MOST_PARTS, max(1, chunks // 4), max(1, processors // blocks))
    fitting = limit // _many_rows_stage_bytes(columns, formats)
    return ManyRows(columns, max(2, min(8, fitting)), parts)


def _many_rows_stage_bytes(columns: int, formats: Mapping[str, int]) -> int:
    group = formats["GROUP"]
    groups = INPUTS // group if group else 0
    weights = _BLOCK_OUTPUTS * INPUTS * formats["BITS"] // 8
    return weights + 8 * columns * INPUTS * 2 + 8 * groups * (32 + 8 * formats["ZEROS"])


def few_rows_shared_bytes(form: FewRows, formats: Mapping[str, int], x_rows: int) -> int:
    group = formats["GROUP"]
    words = INPUTS // group * (1 + formats["ZEROS"]) if group else 0
    ring = form.warps * form.stages * (form.tiles * 32 * (8 * formats["BITS"] + 4 * words) + x_rows * INPUTS * 2)
    return max(ring, form.warps * form.tiles * 512)


def many_rows_shared_bytes(form: ManyRows, formats: Mapping[str, int]) -> int:
    return max(form.stages * _many_rows_stage_bytes(form.columns, formats), 8 * form.columns * 132 * 4)


def formats_of(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None) -> dict[str, int]:
    """The macros that tell a kernel its types."""
    four = packed.dtype == torch.int32
    inputs = x.shape[1]
    group = 0 if scale.shape[1] == 1 and not (four and inputs in (32, 64, 128)) else inputs // scale.shape[1]
    return {"BF16": int(x.dtype == torch.bfloat16), "SCALE_BF16": int(scale.dtype == torch.bfloat16), "BITS": 4 if four else 8,
            "GROUP": group, "ZEROS": int(zero is not None)}


@cache
def source(name: str) -> str:
    directory = Path(__file__).parent
    return (directory / "prelude.cuh").read_text() + (directory / f"{name}.cu").read_text()


@cache
def _function(
    name: str, macros: tuple[tuple[str, int], ...], threads: int, shared_bytes: int, device: int, architecture: str
) -> CudaFunction:
    code = nvrtc.compiled(source(name), dict(macros), architecture)
    return CudaFunction(code, name, threads, shared_bytes, early=True)


def function(name: str, macros: Mapping[str, int], threads: int, shared_bytes: int, device: torch.device) -> CudaFunction:
    """The kernel on the device, compiled for its card when it is first asked for."""
    index = torch.cuda.current_device() if device.index is None else device.index
    return _function(name, tuple(macros.items()), threads, shared_bytes, index, f"sm_{card(device).capability}")


# The three ways


def _few_rows(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, y: Tensor, form: FewRows | None = None) -> None:
    (rows, inputs), outputs = x.shape, len(packed)
    formats = formats_of(x, packed, scale, zero)
    form = form or few_rows_form(outputs, inputs, formats["BITS"])
    x_rows = 1 << (rows - 1).bit_length()
    macros = formats | {"TILES": form.tiles, "WARPS": form.warps, "STAGES": form.stages, "X_ROWS": x_rows}
    kernel = function("few_rows", macros, 32 * form.warps, few_rows_shared_bytes(form, formats, x_rows), x.device)
    blocks = -(-outputs // (ROWS * form.tiles))
    kernel((blocks, 1, 1), packed, scale, zero, x, y, rows, outputs, inputs, ctypes.c_longlong(x.stride(0)))


def _many_rows(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, y: Tensor, form: ManyRows | None = None) -> None:
    (rows, inputs), outputs = x.shape, len(packed)
    formats, facts = formats_of(x, packed, scale, zero), card(x.device)
    form = form or many_rows_form(rows, outputs, inputs, formats, facts.processors, facts.shared_bytes)
    macros = formats | {"COLUMNS": form.columns, "STAGES": form.stages, "PARTS": int(form.parts > 1)}
    kernel = function("many_rows", macros, 256, many_rows_shared_bytes(form, formats), x.device)
    grid = -(-rows // (8 * form.columns)), -(-outputs // _BLOCK_OUTPUTS), form.parts
    into = y if form.parts == 1 else torch.empty(form.parts, rows, outputs, dtype=torch.float32, device=x.device)
    kernel(grid, packed, scale, zero, x, into, rows, outputs, inputs, ctypes.c_longlong(x.stride(0)))
    if form.parts > 1:
        vectors = rows * outputs // 4
        add = function("sum_parts", formats, 256, 0, x.device)
        add((-(-vectors // 256), 1, 1), into, y, form.parts, ctypes.c_longlong(vectors))


def _through_workspace(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, y: Tensor, workspace_bytes: int = WORKSPACE_BYTES
) -> None:
    inputs, outputs = x.shape[1], len(packed)
    decode = function("decode_weight", formats_of(x, packed, scale, zero), 256, 0, x.device)
    step = max(1, workspace_bytes // (2 * inputs * _BLOCK_OUTPUTS)) * _BLOCK_OUTPUTS
    workspace = torch.empty(min(step, outputs), inputs, dtype=x.dtype, device=x.device)
    for first in range(0, outputs, step):
        last = min(outputs, first + step)
        zeros = None if zero is None else zero[first // 8 :]
        grid = -(-inputs // (INPUTS * 8)), (last - first) // ROWS, 1
        decode(grid, packed[first:], scale[first:], zeros, workspace, inputs)
        torch.mm(x, workspace[: last - first].T, out=y[:, first:last])
