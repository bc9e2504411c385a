"""low_bit_linear on NVIDIA cards of compute capability 8.0 and later: CUDA C++ on tiled weights, compiled by NVRTC.

Up to MOST_FEW_ROWS rows one kernel reads the weights at the memory's rate (few.py); up to MOST_FUSED_ROWS (on Hopper, where
that is wgmma, and on HALF_RATE cards: always) others decode them on the way into the tensor cores; for more, pieces of the
weight are decoded into a workspace of WORKSPACE_BYTES for the library's matrix product. As much is taken at most for x in
fp16 where there is no wgmma. Other memory: tile_forms.sums_of float32 numbers that a device keeps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import overload

import torch
from torch import Tensor

from headrace.kernels import nvrtc
from headrace.kernels.card import card
from headrace.kernels.cuda_function import CudaFunction, compiled, with_primitives
from headrace.kernels.low_bit_linear import hopper, tile_forms
from headrace.kernels.low_bit_linear.around import Added, AddedStructure, BesideStructure, normed_structure
from headrace.kernels.low_bit_linear.forms import BLOCK_OUTPUTS
from headrace.kernels.low_bit_linear.layout import INPUTS, ROWS
from headrace.kernels.low_bit_linear.tile_forms import AmpereRows, HopperRows, Share
from headrace.kernels.rms_norm import Activations, NormWeight, PendingNorm, finished, values_of
from headrace.kernels.silu_mul import silu_mul
from headrace.kernels.tensor_map import TensorMap, boxes_of_rows, boxes_of_words

MOST_FEW_ROWS = 8
MOST_FOLDED_ROWS = 64
"""On Hopper: of a product with the norms around it."""
WARPGROUP_OUTPUTS, BESIDE_OUTPUTS = 64, 128
"""On Hopper: what a warpgroup has, and the most of a plain weight beside."""
MOST_FUSED_ROWS = 256
HALF_RATE = (86, 89, 120)
"""Capabilities whose consumer cards sum products in float32, as the library does, at half the rate of sums in fp16."""
WORKSPACE_BYTES = 64 * 2**20
WITH_WGMMA = "hopper_rows"
_WHOLE_ROWS = 64
"""Of the largest tile of ampere_rows."""
_HALVES_THREADS = 512
_BESIDE = {
    "few_rows": ("around.cuh", "few_outputs.cuh"),
    "hopper_rows": ("around.cuh", "work.cuh", "group_scale.cuh", "hopper.cuh", "hopper_beside.cuh"),
    "ampere_rows": ("work.cuh",),
}
"""What sources begin with besides primitives and prelude."""


def suits(x: Tensor, packed: Tensor, scale: Tensor, tiled: bool) -> bool:
    sixteen = x.dtype in (torch.float16, torch.bfloat16) and scale.dtype in (torch.float16, torch.bfloat16)
    return tiled and x.is_cuda and sixteen and card(x.device).capability >= 80 and nvrtc.available()


def low_bit_linear(
    x: Activations, packed: Tensor, scale: Tensor, zero: Tensor | None = None, *, gated: bool = False
) -> Tensor:
    """As the public function, for tiled weights and more than MOST_FEW_ROWS rows."""
    rows, outputs, values = len(x), len(packed), values_of(x)
    if gated and not gates_within(values, packed, scale):
        return silu_mul(low_bit_linear(x, packed, scale, zero))
    y = torch.empty(rows, outputs // (1 + gated), dtype=values.dtype, device=values.device)
    if not rows:
        return y
    capability = card(values.device).capability
    if capability == 90:
        hopper_rows(readable(x if folds(rows, values.device) else finished(x)), packed, scale, zero, y, gated=gated)
        return y
    plain = readable(finished(x))
    if rows <= MOST_FUSED_ROWS or capability in HALF_RATE:
        ampere_rows(plain, packed, scale, zero, y)
    else:
        through_workspace(plain, packed, scale, zero, y)
    return y


def low_bit_linear_norm(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, residual: Tensor, norm: NormWeight
) -> tuple[PendingNorm, Tensor]:
    """As the public function, where norms are folded into hopper_rows."""
    formats, outputs = formats_of(x, packed, scale, zero), len(packed)
    form = tile_forms.hopper_rows_form(len(x), outputs, x.shape[1], formats, card(x.device))
    added = Added.into(residual, norm, form.square_parts(outputs), rows_together=True)
    values = torch.empty_like(added.total)
    if len(x):
        hopper_rows(readable(x), packed, scale, zero, values, form, added=added)
    return PendingNorm(values, added.squares, norm.eps), added.total


def folds(rows: int, device: torch.device) -> bool:
    """Whether norms around a product cost no launch of their own."""
    return rows <= (MOST_FOLDED_ROWS if card(device).capability == 90 else MOST_FEW_ROWS)


@overload
def readable(x: Tensor) -> Tensor: ...
@overload
def readable(x: Activations) -> Activations: ...
def readable(x: Activations) -> Activations:
    """x in rows that kernels read 16 bytes at a time."""
    values = values_of(x)
    if values.stride(1) == 1 and not (values.stride(0) % 8 or values.data_ptr() % 16):
        return x
    return replace(x, values=values.contiguous()) if isinstance(x, PendingNorm) else values.contiguous()


def low_bit_linear_beside(
    x: Activations, packed: Tensor, scale: Tensor, zero: Tensor | None, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """As the public function, where hopper_rows makes both."""
    values = values_of(x)
    y, other = (torch.empty(len(x), len(w), dtype=values.dtype, device=values.device) for w in (packed, weight))
    if len(x):
        hopper_rows(readable(x), packed, scale, zero, y, beside=(weight, other))
    return y, other


def gates_within(x: Tensor, packed: Tensor, scale: Tensor) -> bool:
    """Whether one kernel multiplies and gates, with float32 between; else what lies there is rounded to x's type."""
    (rows, inputs), outputs, here = x.shape, len(packed), card(x.device)
    if outputs % (2 * ROWS):
        return False
    if rows <= MOST_FEW_ROWS:
        return True
    return here.capability == 90 and scale.shape[1] > 1 and tile_forms.hopper_gates(rows, outputs, inputs, here)


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


def hopper_macros(
    form: HopperRows, share: Share, *, normed: bool = False, added: bool = False, gated: bool = False, beside: bool = False
) -> dict[str, int]:
    return {
        "BLOCK_ROWS": form.block_rows, "WARPGROUPS": form.warpgroups, "TILES": form.tiles, "PARTS_OF_CHUNK": form.parts,
        "STAGES": form.stages, "RESIDENT": form.resident, "REGISTERS": form.registers, "COPY_REGISTERS": form.copy_registers,
        "SPLIT": int(share.split), "NORMED": int(normed), "ADDED": int(added), "GATED": int(gated), "BESIDE": int(beside),
    }


def ampere_macros(form: AmpereRows, share: Share) -> dict[str, int]:
    return {"BLOCK_ROWS": form.block_rows, "STAGES": form.stages, "SPLIT": int(share.split)}


def halves_macros(inputs: int) -> dict[str, int]:
    return {"THREADS": _HALVES_THREADS, "PIECES": -(-inputs // (8 * _HALVES_THREADS))}


def hopper_rows(
    x: Activations, packed: Tensor, scale: Tensor, zero: Tensor | None, y: Tensor, form: HopperRows | None = None, *,
    added: Added | None = None, gated: bool = False, beside: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Writes y; any number of rows, on compute capability 9.0. x a PendingNorm, `added` and `beside` (a plain weight, and what
    is written of its product): where the form has all rows in a block.
    """
    values = values_of(x)
    (rows, inputs), outputs, here = values.shape, len(packed), card(values.device)
    formats = formats_of(values, packed, scale, zero)
    form = form or tile_forms.hopper_rows_form(rows, outputs, inputs, formats, here, gated=gated, beside=beside is not None)
    share, parts = tile_forms.hopper_share(form, rows, outputs, inputs, here, beside=beside is not None), 0
    macros = hopper_macros(form, share, normed=isinstance(x, PendingNorm), added=added is not None, gated=gated,
                           beside=beside is not None)
    text = hopper_source(form.block_rows, values.dtype == torch.bfloat16)
    kernel = function("hopper_rows", formats | macros, form.threads, form.shared_bytes(formats), values.device, text)
    boxes = [boxes_of_rows(values, form.block_rows), *_boxes(packed, scale, formats, form)]
    its = BesideStructure()
    if beside:
        weight, its_y = beside
        parts = tile_forms.parts_beside(form)
        boxes.append(boxes_of_rows(weight, WARPGROUP_OUTPUTS))
        its = BesideStructure(its_y.data_ptr(), len(weight), parts)
    else:
        boxes.append(boxes[0])
    kernel((share.workers + parts, 1, 1), *boxes, scale, zero, y, _sums(values.device), rows, outputs, inputs, share.waves,
           tile_forms.row_band(form.block_rows), normed_structure(x), added.structure() if added else AddedStructure(), its)


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
    step = rows_at_once(x.shape[1])
    for rows, into in zip(torch.split(x, step), torch.split(y, step), strict=True):
        _ampere_rows(rows, packed, scale, zero, into, form)


def rows_at_once(inputs: int) -> int:
    return max(1, WORKSPACE_BYTES // (2 * inputs * _WHOLE_ROWS)) * _WHOLE_ROWS


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


def form_of(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, *, gated: bool, beside: Tensor | None) -> Hashable:
    """As the public function, for tiled weights: the same choices as above, and none made here."""
    (rows, inputs), outputs, here = x.shape, len(packed), card(x.device)
    formats, folded = formats_of(x, packed, scale, zero), folds(rows, x.device)
    if here.capability == 90:
        within = gated and gates_within(x, packed, scale)
        near = beside is not None and folded and len(beside) <= BESIDE_OUTPUTS
        form = tile_forms.hopper_rows_form(rows, outputs, inputs, formats, here, gated=within, beside=near)
        share = tile_forms.hopper_share(form, rows, outputs, inputs, here, beside=near)
        return folded, within, near, form, share.split
    if rows > MOST_FUSED_ROWS and here.capability not in HALF_RATE:
        return "workspace"
    rest = (rows - 1) % rows_at_once(inputs) + 1  # what goes before has the forms of fewer rows
    ampere = tile_forms.ampere_rows_form(rest, formats, here)
    return ampere, tile_forms.ampere_share(ampere, rest, outputs, inputs, here).split


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
