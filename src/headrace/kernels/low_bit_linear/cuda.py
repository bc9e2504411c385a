"""low_bit_linear on NVIDIA cards of compute capability 8.0 and later: CUDA C++ on tiled weights, compiled by NVRTC.

Up to MOST_FEW_ROWS rows one kernel reads the weights at the memory's rate (few.py); up to MOST_FUSED_ROWS (on Hopper, where
that is wgmma, and on HALF_RATE cards: always) others decode them on the way into the tensor cores; for more, pieces of the
weight are decoded into a workspace of WORKSPACE_BYTES for the library's matrix product. As much is taken at most for x in
fp16 where there is no wgmma. Other memory: tile_forms.sums_of float32 numbers that a device keeps, and with 9 to 16 rows,
where the inputs are cut into parts, parts x rows x outputs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from headrace.kernels import nvrtc
from headrace.kernels.card import card
from headrace.kernels.cuda_function import CudaFunction, compiled, with_primitives
from headrace.kernels.low_bit_linear import forms, hopper, tile_forms
from headrace.kernels.low_bit_linear.forms import BLOCK_OUTPUTS, ManyRows
from headrace.kernels.low_bit_linear.layout import INPUTS, ROWS
from headrace.kernels.low_bit_linear.tile_forms import AmpereRows, HopperRows, Share
from headrace.kernels.silu_mul import silu_mul
from headrace.kernels.tensor_map import TensorMap, boxes_of_rows, boxes_of_words

MOST_FEW_ROWS = 8
MOST_FUSED_ROWS = 256
HALF_RATE = (86, 89, 120)
"""Capabilities whose consumer cards sum products in float32, as the library does, at half the rate of sums in fp16."""
WORKSPACE_BYTES = 64 * 2**20
WITH_WGMMA = "hopper_rows"
_WHOLE_ROWS = 64
"""Of the largest tile of ampere_rows."""
_HALVES_THREADS = 512
_BESIDE = {"few_rows": ("few_outputs.cuh",), "hopper_rows": ("work.cuh", "group_scale.cuh"),
           "ampere_rows": ("work.cuh", "group_scale.cuh")}
"""What sources begin with besides primitives and prelude."""


def suits(x: Tensor, packed: Tensor, scale: Tensor, tiled: bool) -> bool:
    sixteen = x.dtype in (torch.float16, torch.bfloat16) and scale.dtype in (torch.float16, torch.bfloat16)
    return tiled and x.is_cuda and sixteen and card(x.device).capability >= 80 and nvrtc.available()


def low_bit_linear(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None = None, *, gated: bool = False
) -> Tensor:
    """As the public function, for tiled weights and more than MOST_FEW_ROWS rows."""
    rows, outputs = len(x), len(packed)
    if gated and not gates_within(rows, outputs):
        return silu_mul(low_bit_linear(x, packed, scale, zero))
    y = torch.empty(rows, outputs // (1 + gated), dtype=x.dtype, device=x.device)
    if not rows:
        return y
    if x.stride(1) != 1 or x.stride(0) % 8 or x.data_ptr() % 16:
        x = x.contiguous()
    capability = card(x.device).capability
    if capability == 90 and rows < tile_forms.LEAST_ROWS:
        many_rows(x, packed, scale, zero, y)
    elif capability == 90:
        hopper_rows(x, packed, scale, zero, y)
    elif rows <= MOST_FUSED_ROWS or capability in HALF_RATE:
        ampere_rows(x, packed, scale, zero, y)
    else:
        through_workspace(x, packed, scale, zero, y)
    return y


def gates_within(rows: int, outputs: int) -> bool:
    """Whether one kernel multiplies and gates, with float32 between; else what lies there is rounded to x's type."""
    return rows <= MOST_FEW_ROWS and outputs % (2 * ROWS) == 0


def formats_of(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None) -> dict[str, int]:
    """The macros that tell a kernel its types."""
    groups, inputs = scale.shape[1], x.shape[1]
    one = groups == 1 and (packed.dtype == torch.int8 or inputs != INPUTS)
    return {
        "BF16": int(x.dtype == torch.bfloat16),
        "SCALE_BF16": int(scale.dtype == torch.bfloat16),
        "BITS": 4 if packed.dtype == torch.int32 else 8,
        "GROUP": 0 if one else inputs // groups,
        "ZEROS": int(zero is not None),
    }


@cache
def source(name: str) -> str:
    """One kernel and what it shares with others."""
    files = ("prelude.cuh", *_BESIDE.get(name, ()), f"{name}.cu")
    return with_primitives(*(Path(__file__).parent / file for file in files))


@cache
def hopper_source(block_rows: int, bf16: bool) -> str:
    return hopper.multiply(block_rows, bf16) + source("hopper_rows")


def function(
    name: str, macros: Mapping[str, int], threads: int, shared_bytes: int, device: torch.device, text: str | None = None
) -> CudaFunction:
    """The kernel on the device, compiled for its card when it is first launched. text: its source, if it is not a file's."""
    return compiled(text or source(name), name, macros, threads, shared_bytes, device, wgmma=name == WITH_WGMMA)


def many_macros(form: ManyRows) -> dict[str, int]:
    return {"STAGES": form.stages, "PARTS": int(form.parts > 1)}


def hopper_macros(form: HopperRows, share: Share) -> dict[str, int]:
    return {
        "BLOCK_ROWS": form.block_rows, "WARPGROUPS": form.warpgroups, "PARTS_OF_CHUNK": form.parts, "STAGES": form.stages,
        "RESIDENT": form.resident, "REGISTERS": form.registers, "COPY_REGISTERS": form.copy_registers,
        "SPLIT": int(share.split),
    }


def ampere_macros(form: AmpereRows, share: Share) -> dict[str, int]:
    return {"BLOCK_ROWS": form.block_rows, "STAGES": form.stages, "SPLIT": int(share.split)}


def halves_macros(inputs: int) -> dict[str, int]:
    return {"THREADS": _HALVES_THREADS, "PIECES": -(-inputs // (8 * _HALVES_THREADS))}


def many_rows(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, y: Tensor, form: ManyRows | None = None) -> None:
    """Writes y; any number of rows, meant for 9 to 16."""
    formats = formats_of(x, packed, scale, zero)
    form = form or forms.many_rows_form(len(x), len(packed), x.shape[1], formats, card(x.device))
    kernel = function("many_rows", formats | many_macros(form), 256, form.shared_bytes(formats), x.device)
    (rows, inputs), outputs, parts = x.shape, len(packed), form.parts
    grid = -(-rows // forms.MANY_ROWS), -(-outputs // BLOCK_OUTPUTS), parts
    into = y if parts == 1 else torch.empty(parts, rows, outputs, dtype=torch.float32, device=x.device)
    kernel(grid, packed, scale, zero, x, into, rows, outputs, inputs, ctypes.c_longlong(x.stride(0)))
    if parts > 1:
        vectors = rows * outputs // 4
        add = function("sum_parts", formats, 256, 0, x.device)
        add((-(-vectors // 256), 1, 1), into, y, parts, ctypes.c_longlong(vectors))


def hopper_rows(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, y: Tensor, form: HopperRows | None = None
) -> None:
    """Writes y; any number of rows, on compute capability 9.0."""
    (rows, inputs), outputs, here = x.shape, len(packed), card(x.device)
    formats = formats_of(x, packed, scale, zero)
    form = form or tile_forms.hopper_rows_form(rows, outputs, inputs, formats, here)
    share = tile_forms.hopper_share(form, rows, outputs, inputs, here)
    text = hopper_source(form.block_rows, x.dtype == torch.bfloat16)
    kernel = function(
        "hopper_rows", formats | hopper_macros(form, share), form.threads, form.shared_bytes(formats), x.device, text
    )
    boxes = boxes_of_rows(x, form.block_rows), *_boxes(packed, scale, formats, form)
    kernel((share.workers, 1, 1), *boxes, scale, zero, y, _sums(x.device), rows, outputs, inputs, share.waves,
           tile_forms.row_band(form.block_rows))


def _boxes(packed: Tensor, scale: Tensor, formats: Mapping[str, int], form: HopperRows) -> tuple[TensorMap, TensorMap]:
    """A chunk's weights and scales: of all warps that multiply."""
    words, warps, tiles = 32 * formats["BITS"], 4 * form.warpgroups, len(packed) // ROWS  # words: of a tile's half chunk
    halves = packed.numel() * packed.element_size() // (4 * words * tiles)
    groups = INPUTS // formats["GROUP"] if formats["GROUP"] else 1
    return (boxes_of_words(packed, (words, halves, tiles), (words, 2, warps)),
            boxes_of_words(scale, (ROWS // 2, scale.shape[1], tiles), (ROWS // 2, groups, warps)))


def ampere_rows(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, y: Tensor, form: AmpereRows | None = None
) -> None:
    """Writes y; any number of rows, as many at a time as WORKSPACE_BYTES hold of x in fp16."""
    step = max(1, WORKSPACE_BYTES // (2 * x.shape[1] * _WHOLE_ROWS)) * _WHOLE_ROWS
    for rows, into in zip(torch.split(x, step), torch.split(y, step), strict=True):
        _ampere_rows(rows, packed, scale, zero, into, form)


def _ampere_rows(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, y: Tensor, form: AmpereRows | None
) -> None:
    (rows, inputs), outputs, here = x.shape, len(packed), card(x.device)
    formats = formats_of(x, packed, scale, zero)
    form = form or tile_forms.ampere_rows_form(rows, formats, here)
    share = tile_forms.ampere_share(form, rows, outputs, inputs, here)
    kernel = function("ampere_rows", formats | ampere_macros(form, share), 256, form.shared_bytes(formats), x.device)
    kernel((share.workers, 1, 1), packed, scale, zero, *in_halves(x, formats), y, _sums(x.device), rows, outputs, inputs,
           share.waves, tile_forms.row_band(form.block_rows))


def in_halves(x: Tensor, formats: dict[str, int]) -> tuple[Tensor, Tensor]:
    """x in fp16, each row times a power of two, and what undoes it and the weights' unit, with room for whole tiles of rows."""
    rows, inputs = x.shape
    halves = torch.empty(rows, inputs, dtype=torch.float16, device=x.device)
    units = torch.empty(-(-rows // _WHOLE_ROWS) * _WHOLE_ROWS, dtype=torch.float32, device=x.device)
    kernel = function("halves", formats | halves_macros(inputs), _HALVES_THREADS, 0, x.device)
    kernel((rows, 1, 1), x, halves, units, inputs, ctypes.c_longlong(x.stride(0)))
    return halves, units


def _sums(device: torch.device) -> Tensor:
    return _kept_sums(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _kept_sums(index: int) -> Tensor:
    """Where sums are sent; -1 (see work.cuh) where none is, so everywhere between two calls, which must follow each other."""
    device = torch.device("cuda", index)
    return torch.full((tile_forms.sums_of(card(device)),), -1, dtype=torch.int32, device=device)


def through_workspace(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, y: Tensor, workspace_bytes: int = WORKSPACE_BYTES
) -> None:
    """Writes y; for many rows."""
    inputs, outputs = x.shape[1], len(packed)
    decode = function("decode_weight", formats_of(x, packed, scale, zero), 256, 0, x.device)
    step = max(1, workspace_bytes // (2 * inputs * BLOCK_OUTPUTS)) * BLOCK_OUTPUTS
    workspace = torch.empty(min(step, outputs), inputs, dtype=x.dtype, device=x.device)
    for first in range(0, outputs, step):
        last = min(outputs, first + step)
        zeros = None if zero is None else zero[first // 8 :]
        grid = -(-inputs // (INPUTS * 8)), (last - first) // ROWS, 1
        decode(grid, packed[first:], scale[first:], zeros, workspace, inputs)
        torch.mm(x, workspace[: last - first].T, out=y[:, first:last])
