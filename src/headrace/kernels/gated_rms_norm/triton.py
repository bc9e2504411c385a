"""The gated norm of every head in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.dispatch import early
from headrace.kernels.tile import await_previous, let_next_start, store
from headrace.kernels.variant import Variant

_TILE_ELEMENTS = 2_048


@triton.jit
def _norm_heads(
    x, gate, weight, out, count, heads, gate_stride, eps, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """ROWS heads [ROWS, WIDTH] a program, of count = T * heads in all. gate_stride: elements from token to token."""
    let_next_start(EARLY)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (row < count) & (column < WIDTH)
    at = row.to(tl.int64) * WIDTH + column
    gate_at = (row // heads).to(tl.int64) * gate_stride + row % heads * WIDTH + column
    scale = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    await_previous(EARLY)
    wide = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    z = tl.load(gate + gate_at, mask=mask, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, 1) / WIDTH + eps)
    store(out + at, wide * inverse[:, None] * scale * z / (1.0 + tl.exp(-z)), mask)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, out_dtype: torch.dtype | None = None) -> Tensor:
    x = x.contiguous()
    tokens, heads, width = x.shape
    assert gate.stride(2) == 1 and gate.stride(1) == width
    out = torch.empty(x.shape, dtype=out_dtype or x.dtype, device=x.device)
    if out.numel():
        rows, columns = _tile(width)
        grid = (triton.cdiv(tokens * heads, rows),)
        _norm_heads[grid](
            x, gate, weight, out, tokens * heads, heads, gate.stride(0), eps, width, rows, columns, num_warps=4,
            **early(out.device),
        )
    return out


def _tile(width: int) -> tuple[int, int]:
    """Heads of a program, and its columns."""
    columns = triton.next_power_of_2(width)
    return max(1, _TILE_ELEMENTS // columns), columns


def _variant(dtype: str, width: int) -> Variant:
    signature = dict.fromkeys(("gate", "out"), f"*{dtype}") | {"x": "*fp32" if dtype == "fp32" else "*fp16", "weight": "*fp32"}
    signature |= {"count": "i32", "heads": "i32", "gate_stride": "i32", "eps": "fp32"}
    rows, columns = _tile(width)
    constants = {"WIDTH": width, "ROWS": rows, "COLUMNS": columns}
    aligned = ("x", "gate", "out", "weight", "count", "heads", "gate_stride")
    return Variant(
        f"{dtype}-{width}", _norm_heads, signature, constants, aligned=aligned, early=True, reads_early=("weight",)
    )


VARIANTS = tuple(_variant(dtype, 128) for dtype in ("bf16", "fp16", "fp32"))
