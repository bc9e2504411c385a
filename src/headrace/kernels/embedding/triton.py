"""One row's piece a program."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.dispatch import early
from headrace.kernels.tile import await_previous, let_next_start
from headrace.kernels.variant import Variant

_COLUMNS = 1_024


@triton.jit
def _take_rows(tokens, weight, out, columns, COLUMNS: tl.constexpr, EARLY: tl.constexpr):
    """Grid [T, pieces of COLUMNS]."""
    let_next_start(EARLY)
    await_previous(EARLY)
    token, row = tl.load(tokens + tl.program_id(0)).to(tl.int64), tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    value = tl.load(weight + token * columns + column, mask=column < columns)
    tl.store(out + row * columns + column, value, mask=column < columns)


def embedding(tokens: Tensor, weight: Tensor) -> Tensor:
    columns = weight.shape[1]
    out = weight.new_empty(len(tokens), columns)
    if len(tokens):
        _take_rows[(len(tokens), triton.cdiv(columns, _COLUMNS))](
            tokens, weight, out, columns, _COLUMNS, num_warps=4, **early(out.device)
        )
    return out


VARIANTS = tuple(
    Variant(
        dtype, _take_rows, {"tokens": "*i64", "weight": f"*{dtype}", "out": f"*{dtype}", "columns": "i32"},
        {"COLUMNS": _COLUMNS}, aligned=("tokens", "weight", "out", "columns"), early=True,
    )
    for dtype in ("bf16", "fp16", "fp32")
)
