"""RMS norm in one launch: every row is read once and kept in registers where it fits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.dispatch import early
from headrace.kernels.tile import await_previous, let_next_start, narrow, store
from headrace.kernels.variant import Variant

_WHOLE_COLUMNS = 16_384
"""Widest row kept in registers; wider ones are read twice, the second time from a cache."""
_TILE_ELEMENTS = 2_048
"""Narrow rows share a program until it has so many elements."""


@triton.jit
def _total(x, residual, total, at, mask, ADD: tl.constexpr):
    """x, or x + residual rounded to its type as it is stored, in fp32."""
    wide = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        added = narrow(wide + tl.load(residual + at, mask=mask, other=0.0).to(tl.float32), total.dtype.element_ty)
        tl.store(total + at, added, mask=mask)
        wide = added.to(tl.float32)
    return wide


@triton.jit
def _norm_rows(
    x, residual, weight, out, total, rows, columns, eps, offset, ADD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """ROWS whole rows [ROWS, COLUMNS] a program; columns <= COLUMNS."""
    let_next_start(EARLY)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (row < rows) & (column < columns)
    at = row.to(tl.int64) * columns + column
    scale = tl.load(weight + column, mask=column < columns, other=0.0).to(tl.float32) + offset
    await_previous(EARLY)
    wide = _total(x, residual, total, at, mask, ADD)
    inverse = tl.rsqrt(tl.sum(wide * wide, 1) / columns + eps)
    store(out + at, wide * inverse[:, None] * scale, mask)


@triton.jit
def _norm_wide(
    x, residual, weight, out, total, columns, eps, offset, ADD: tl.constexpr, COLUMNS: tl.constexpr, EARLY: tl.constexpr
):
    """One row a program, in pieces of COLUMNS."""
    let_next_start(EARLY)
    await_previous(EARLY)
    start = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, COLUMNS)
    squares = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, columns, COLUMNS):
        wide = _total(x, residual, total, start + first + column, first + column < columns, ADD)
        squares += wide * wide
    inverse = tl.rsqrt(tl.sum(squares) / columns + eps)
    tl.debug_barrier()  # what other threads of the program stored is read below
    for first in range(0, columns, COLUMNS):
        mask = first + column < columns
        wide = tl.load((total if ADD else x) + start + first + column, mask=mask, other=0.0).to(tl.float32)
        scale = tl.load(weight + first + column, mask=mask, other=0.0).to(tl.float32) + offset
        store(out + start + first + column, wide * inverse * scale, mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    _launch(x, x, weight, out, x, eps, offset, add=False)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    x, residual = x.contiguous(), residual.contiguous()
    out, total = torch.empty_like(x), torch.empty_like(x)
    _launch(x, residual, weight, out, total, eps, offset, add=True)
    return out, total


def _launch(
    x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, total: Tensor, eps: float, offset: float, *, add: bool
) -> None:
    columns = x.shape[-1]
    rows = x.numel() // columns
    if not rows:
        return
    if columns > _WHOLE_COLUMNS:
        _norm_wide[(rows,)](
            x, residual, weight, out, total, columns, eps, offset, add, 4096, num_warps=8, **early(x.device)
        )
        return
    width, shared_rows, warps = tile_shape(columns)
    grid = (triton.cdiv(rows, shared_rows),)
    _norm_rows[grid](
        x, residual, weight, out, total, rows, columns, eps, offset, add, shared_rows, width, num_warps=warps, **early(x.device)
    )


def tile_shape(columns: int) -> tuple[int, int, int]:
    """Columns and rows of a program's tile, and its warps: at least 16 bytes a thread and load."""
    width = triton.next_power_of_2(columns)
    shared_rows = max(1, _TILE_ELEMENTS // width)
    return width, shared_rows, min(16, max(4, width // 512))


def _variant(columns: int, dtype: str, add: bool) -> Variant:
    names = ("x", "residual", "weight", "out", "total")
    signature = dict.fromkeys(names, f"*{dtype}") | {"columns": "i32", "eps": "fp32", "offset": "fp32"}
    constants: dict[str, object] = {"ADD": add}
    aligned = (*names, "columns")
    name = f"{'add-' if add else ''}{columns}-{dtype}"
    if columns > _WHOLE_COLUMNS:
        return Variant(name, _norm_wide, signature, constants | {"COLUMNS": 4096}, num_warps=8, aligned=aligned, early=True)
    width, rows, warps = tile_shape(columns)
    constants |= {"ROWS": rows, "COLUMNS": width}
    return Variant(
        name, _norm_rows, signature | {"rows": "i32"}, constants, num_warps=warps, aligned=aligned, early=True,
        reads_early=("weight",),
    )


VARIANTS = tuple(
    _variant(columns, dtype, add)
    for columns in (256, 1024, 5120, 8192, 20_480)
    for dtype in ("bf16", "fp16", "fp32")
    for add in (False, True)
)
