"""A piece of one token's channels a program."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.dispatch import early
from headrace.kernels.tile import await_previous, let_next_start, store
from headrace.kernels.variant import Variant

_COLUMNS = 1_024


@triton.jit
def _convolve(
    x, base, change, out, columns, groups, group, stride, block, TAPS: tl.constexpr, COLUMNS: tl.constexpr, EARLY: tl.constexpr
):
    """Grid [T, pieces of COLUMNS]. stride: of change from token to token."""
    let_next_start(EARLY)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < columns
    total = tl.zeros((COLUMNS,), tl.float32)
    await_previous(EARLY)
    for tap in tl.static_range(TAPS):
        here = mask & (tl.program_id(0) % block >= tap)
        value = tl.load(x + (token - tap) * columns + column, mask=here, other=0.0).to(tl.float32)
        own = tl.load(change + token * stride + tap * groups + column // group, mask=here, other=0.0).to(tl.float32)
        total += (own + tl.load(base + tap * columns + column, mask=here, other=0.0).to(tl.float32)) * value
    store(out + token * columns + column, total, mask)


def block_convolution(x: Tensor, base: Tensor, change: Tensor, block: int) -> Tensor:
    x, (tokens, columns), groups = x.contiguous(), x.shape, change.shape[2]
    out = x.new_empty(tokens, columns)
    if tokens:
        _convolve[(tokens, triton.cdiv(columns, _COLUMNS))](
            x, base, change, out, columns, groups, columns // groups, change.stride(0), block, len(base), _COLUMNS, num_warps=4,
            **early(out.device),
        )
    return out


_NUMBERS = ("columns", "groups", "group", "stride", "block")
VARIANTS = tuple(
    Variant(
        dtype, _convolve, dict.fromkeys(("x", "base", "change", "out"), f"*{dtype}") | dict.fromkeys(_NUMBERS, "i32"),
        {"TAPS": 2, "COLUMNS": _COLUMNS}, aligned=("x", "base", "change", "out", "columns", "groups", "group", "stride"),
        early=True,
    )
    for dtype in ("bf16", "fp16", "fp32")
)
