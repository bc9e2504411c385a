"""eight_bit_linear on NVIDIA cards: CUDA C++ on tiled weights and tiled codes, compiled by NVRTC.

Up to 8 rows one kernel reads the weights at the memory's rate; another has rows as columns of mma.sync, and on Hopper a third,
for many, of wgmma. int8 is multiplied so on every card, fp8 from compute capability 8.9 on. Otherwise (also 8-bit weights with
fp8, which cannot hold them) the codes, which fp16 holds exactly, are the activations of low_bit_linear, whose result is brought
to scale.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from headrace.kernels.card import card
from headrace.kernels.cuda_function import CudaFunction, compiled, with_primitives
from headrace.kernels.eight_bit_linear import forms, hopper
from headrace.kernels.eight_bit_linear.forms import BLOCK_OUTPUTS, FewRows, HopperRows, ManyRows
from headrace.kernels.low_bit_linear import cuda as low_bit
from headrace.kernels.low_bit_linear import form_of as low_bit_form_of
from headrace.kernels.low_bit_linear import low_bit_linear
from headrace.kernels.low_bit_linear.layout import INPUTS, ROWS
from headrace.kernels.quantise_rows import cuda as quantise

MOST_FEW_ROWS = 8
LEAST_HOPPER_ROWS = {torch.int8: 65, torch.float8_e4m3fn: 33}
LEAST_FP8_CAPABILITY = 89
WITH_WGMMA = "hopper_rows"


def suits(x: Tensor, packed: Tensor, scale: Tensor, tiled: bool, *, gated_inputs: bool = False) -> bool:
    return low_bit.suits(x, packed, scale, tiled) and quantise.suits(x, gated=gated_inputs)


def eight_bit_linear(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, codes: torch.dtype, *, gated_inputs: bool = False
) -> Tensor:
    """As the public function, for tiled weights."""
    way = on_codes if goes_on_codes(x, packed, codes) else in_sixteen_bits
    return way(x, packed, scale, zero, codes, gated_inputs=gated_inputs)


def goes_on_codes(x: Tensor, packed: Tensor, codes: torch.dtype) -> bool:
    """Whether products of codes are there, and no slower than those of what fp16 makes of them."""
    on = card(x.device)
    faster = forms.faster_in_sixteen_bits(len(x), len(packed), on, fp8=codes != torch.int8)
    return not faster and multiplies(packed, codes, on.capability)


def form_of(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, codes: torch.dtype) -> Hashable:
    """As the public function, for tiled weights: the same choices as above and below, and none made here."""
    (rows, inputs), outputs, on = x.shape, len(packed), card(x.device)
    if not goes_on_codes(x, packed, codes):
        made = x.new_empty(1, inputs, dtype=torch.float16).expand(rows, -1)
        return "sixteen bits", low_bit_form_of(made, packed, scale, zero, tiled=True)
    if rows <= MOST_FEW_ROWS:
        return forms.x_rows_of(rows)
    formats = formats_of(x, inputs, packed, scale, zero, codes)
    if goes_to_hopper(rows, codes, on.capability):
        return forms.hopper_rows_form(rows, formats, on)
    many = forms.many_rows_form(rows, outputs, inputs, formats, on)
    return many.columns, many.stages, many.parts > 1


def on_codes(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, codes: torch.dtype, *, gated_inputs: bool = False
) -> Tensor:
    """By products of codes, where the card has them."""
    rows, capability = len(x), card(x.device).capability
    y = torch.empty(rows, len(packed), dtype=x.dtype, device=x.device)
    if not rows:
        return y
    made = quantise.quantise_rows(x, codes, tiled=True, gated=gated_inputs)
    if rows <= MOST_FEW_ROWS:
        few_rows(*made, packed, scale, zero, y, codes)
    elif goes_to_hopper(rows, codes, capability):
        hopper_rows(*made, packed, scale, zero, y, codes)
    else:
        many_rows(*made, packed, scale, zero, y, codes)
    return y


def goes_to_hopper(rows: int, codes: torch.dtype, capability: int) -> bool:
    return capability == 90 and rows >= LEAST_HOPPER_ROWS[codes]


def multiplies(packed: Tensor, codes: torch.dtype, capability: int) -> bool:
    """Whether the card has products of such codes, and the codes' type all weights: e4m3 has integers to 16 only."""
    return codes == torch.int8 or (packed.dtype == torch.int32 and capability >= LEAST_FP8_CAPABILITY)


def in_sixteen_bits(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, codes: torch.dtype, *, gated_inputs: bool = False
) -> Tensor:
    """In fp16, three bits more than bf16's, since the result is rounded once more, to x's type, when it is brought to scale. It
    is infinite only where a row's weights sum up to tens of thousands.
    """
    made, x_scale = quantise.quantise_rows(x, codes, gated=gated_inputs, halves=True)
    product = low_bit_linear(made, packed, scale, zero, tiled=True)
    return torch.mul(product, x_scale[:, None], out=torch.empty_like(product, dtype=x.dtype))


def formats_of(
    y: Tensor, inputs: int, packed: Tensor, scale: Tensor, zero: Tensor | None, codes: torch.dtype
) -> dict[str, int]:
    """The macros that tell a kernel its types."""
    groups = scale.shape[1]
    one = groups == 1 and (packed.dtype == torch.int8 or inputs != INPUTS)
    return {
        "BF16": int(y.dtype == torch.bfloat16), "SCALE_BF16": int(scale.dtype == torch.bfloat16),
        "BITS": 4 if packed.dtype == torch.int32 else 8, "GROUP": 0 if one else inputs // groups,
        "ZEROS": int(zero is not None), "FP8": int(codes != torch.int8),
    }


@cache
def source(name: str) -> str:
    """Primitives, the two preludes and one kernel."""
    directory = Path(__file__).parent
    shared = directory.parent / "low_bit_linear" / "prelude.cuh"
    return with_primitives(shared, directory / "prelude.cuh", directory / f"{name}.cu")


def sum_source() -> str:
    return low_bit.source("sum_parts")


@cache
def hopper_source(block_rows: int, *, fp8: bool) -> str:
    return "#define WGMMA 1\n" + hopper.multiply(block_rows // 2, fp8=fp8) + source("hopper_rows")


def function(
    name: str, text: str, macros: Mapping[str, int], threads: int, shared_bytes: int, device: torch.device
) -> CudaFunction:
    """The kernel on the device, compiled for its card when it is first launched."""
    return compiled(text, name, macros, threads, shared_bytes, device, wgmma=name == WITH_WGMMA)


def few_macros(form: FewRows, x_rows: int) -> dict[str, int]:
    return {"TILES": form.tiles, "WARPS": form.warps, "STAGES": form.stages, "X_ROWS": x_rows}


def many_macros(form: ManyRows) -> dict[str, int]:
    return {"COLUMNS": form.columns, "STAGES": form.stages, "PARTS": int(form.parts > 1)}


def hopper_macros(form: HopperRows) -> dict[str, int]:
    return {"BLOCK_ROWS": form.block_rows, "STAGES": form.stages, "CLUSTER": form.cluster}


def few_rows(
    made: Tensor, x_scale: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, y: Tensor, codes: torch.dtype,
    form: FewRows | None = None,
) -> None:
    """Writes y from tiled codes; 1 to 8 rows. form: other than the one that is chosen for the shape."""
    (rows, outputs), inputs = y.shape, made.shape[1]
    formats, x_rows = formats_of(y, inputs, packed, scale, zero, codes), forms.x_rows_of(rows)
    form = form or forms.few_rows_form(rows, outputs, formats, card(y.device))
    macros, shared_bytes = formats | few_macros(form, x_rows), form.shared_bytes(formats, x_rows)
    kernel = function("few_rows", source("few_rows"), macros, 32 * form.warps, shared_bytes, y.device)
    kernel((-(-outputs // (ROWS * form.tiles)), 1, 1), packed, scale, zero, made, x_scale, y, rows, outputs, inputs)


def many_rows(
    made: Tensor, x_scale: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, y: Tensor, codes: torch.dtype,
    form: ManyRows | None = None,
) -> None:
    """Writes y from tiled codes; any number of rows."""
    (rows, outputs), inputs = y.shape, made.shape[1]
    formats = formats_of(y, inputs, packed, scale, zero, codes)
    form = form or forms.many_rows_form(rows, outputs, inputs, formats, card(y.device))
    macros = formats | many_macros(form)
    kernel = function("many_rows", source("many_rows"), macros, 256, form.shared_bytes(formats), y.device)
    into = y if form.parts == 1 else torch.empty(form.parts, rows, outputs, dtype=torch.float32, device=y.device)
    grid = -(-rows // (8 * form.columns)), -(-outputs // BLOCK_OUTPUTS), form.parts
    kernel(grid, packed, scale, zero, made, x_scale, into, rows, outputs, inputs)
    if form.parts > 1:
        vectors = rows * outputs // 4
        add = function("sum_parts", sum_source(), formats, 256, 0, y.device)
        add((-(-vectors // 256), 1, 1), into, y, form.parts, ctypes.c_longlong(vectors))


def hopper_rows(
    made: Tensor, x_scale: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, y: Tensor, codes: torch.dtype,
    form: HopperRows | None = None,
) -> None:
    """Writes y from tiled codes; any number of rows, on compute capability 9.0."""
    (rows, outputs), inputs = y.shape, made.shape[1]
    formats = formats_of(y, inputs, packed, scale, zero, codes)
    form = form or forms.hopper_rows_form(rows, formats, card(y.device))
    text = hopper_source(form.block_rows, fp8=bool(formats["FP8"]))
    kernel = function("hopper_rows", text, formats | hopper_macros(form), form.threads, form.shared_bytes(formats), y.device)
    blocks = form.blocks(rows, outputs, card(y.device).processors)
    kernel((blocks, 1, 1), packed, scale, zero, made, x_scale, y, rows, outputs, inputs)
