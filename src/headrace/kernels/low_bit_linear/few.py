"""low_bit_linear for up to cuda.MOST_FEW_ROWS rows on NVIDIA cards: one kernel, few_rows.cu.

With what stands around the product in a layer: a norm whose factors x still waits for, the addition to the residual sum and
the norm of that, a product of few outputs beside.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from headrace.kernels.card import card
from headrace.kernels.low_bit_linear import forms
from headrace.kernels.low_bit_linear.around import (
    Added,
    AddedStructure,
    Beside,
    FewOutputsStructure,
    few_outputs_between,
    normed_structure,
)
from headrace.kernels.low_bit_linear.cuda import formats_of, function, readable
from headrace.kernels.low_bit_linear.forms import FewRows
from headrace.kernels.low_bit_linear.layout import ROWS
from headrace.kernels.rms_norm import Activations, NormWeight, PendingNorm, values_of
from headrace.kernels.silu_mul import silu_mul


def low_bit_linear(
    x: Activations, packed: Tensor, scale: Tensor, zero: Tensor | None = None, *, gated: bool = False
) -> Tensor:
    """As the public function, for tiled weights."""
    if gated and len(packed) % (2 * ROWS):
        return silu_mul(low_bit_linear(x, packed, scale, zero))
    values = values_of(x)
    y = torch.empty(len(x), len(packed) // (1 + gated), dtype=values.dtype, device=values.device)
    if len(x):
        few_rows(readable(x), packed, scale, zero, y, gated=gated)
    return y


def low_bit_linear_norm(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, residual: Tensor, norm: NormWeight
) -> tuple[PendingNorm, Tensor]:
    """As the public function, where folds_norms."""
    added = Added.into(residual, norm, len(packed) // ROWS, rows_together=False)
    values = torch.empty_like(added.total)
    if len(x):
        few_rows(readable(x), packed, scale, zero, values, added=added)
    return PendingNorm(values, added.squares, norm.eps), added.total


def low_bit_linear_beside(
    x: Activations, packed: Tensor, scale: Tensor, zero: Tensor | None, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """As the public function, where goes_beside."""
    values = values_of(x)
    y, other = (torch.empty(len(x), len(w), dtype=values.dtype, device=values.device) for w in (packed, weight))
    if len(x):
        few_rows(readable(x), packed, scale, zero, y, beside=Beside(weight, other, few_outputs_between(_index(values.device))))
    return y, other


def few_macros(
    form: FewRows, x_rows: int, gated: bool, *, resident: int, normed: bool = False, added: bool = False, beside: bool = False
) -> dict[str, int]:
    return {
        "TILES": form.tiles, "WARPS": form.warps, "STAGES": form.stages, "X_ROWS": x_rows, "GATED": int(gated),
        "NORMED": int(normed), "ADDED": int(added), "BESIDE": int(beside), "RESIDENT": resident,
    }


def few_rows(
    x: Activations, packed: Tensor, scale: Tensor, zero: Tensor | None, y: Tensor, form: FewRows | None = None, *,
    gated: bool = False, added: Added | None = None, beside: Beside | None = None,
) -> None:
    """Writes y; 1 to 8 rows. form: other than the one that is chosen for the shape. gated: halves are whole tiles."""
    values = values_of(x)
    (rows, inputs), outputs, here = values.shape, len(packed), card(values.device)
    formats, x_rows = formats_of(values, packed, scale, zero), forms.x_rows_of(rows)
    form = form or forms.few_rows_form(rows, outputs, inputs, formats, here, gated=gated)
    shared_bytes = max(form.shared_bytes(formats, x_rows), forms.few_outputs_bytes(form.warps, 8) if beside else 0)
    macros = formats | few_macros(
        form, x_rows, gated, resident=form.resident(formats, shared_bytes, here), normed=isinstance(x, PendingNorm),
        added=added is not None, beside=beside is not None,
    )
    kernel = function("few_rows", macros, 32 * form.warps, shared_bytes, values.device)
    grid = form.blocks(outputs) + (beside.blocks(form.warps) if beside else 0), form.parts, 1
    kernel(
        grid, packed, scale, zero, values, y, *_between_blocks(_index(values.device)), rows, outputs, inputs,
        ctypes.c_longlong(values.stride(0)), normed_structure(x), added.structure() if added else AddedStructure(),
        beside.structure(form.warps) if beside else FewOutputsStructure(),
    )


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


@cache
def _between_blocks(index: int) -> tuple[Tensor, Tensor]:
    """Sums which blocks of few_rows leave for each other, and their flags: zero between two calls, one after the other."""
    device = torch.device("cuda", index)
    sums, blocks = forms.few_rows_between_blocks(card(device))
    return torch.empty(sums, dtype=torch.float32, device=device), torch.zeros(blocks, dtype=torch.int32, device=device)
