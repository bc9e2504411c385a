"""silu(gate) * up, one read of the fused projection's output and one write."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.dispatch import early
from headrace.kernels.tile import await_previous, let_next_start, store
from headrace.kernels.variant import Variant

_COLUMNS = 1_024


@triton.jit
def _silu_mul(gate_up, out, columns, COLUMNS: tl.constexpr, EARLY: tl.constexpr):
    """One piece of COLUMNS of one row: gate_up [T, 2 columns] -> out [T, columns]."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < columns
    gate = tl.load(gate_up + row * 2 * columns + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (row * 2 + 1) * columns + column, mask=mask, other=0.0).to(tl.float32)
    store(out + row * columns + column, gate / (1.0 + tl.exp(-gate)) * up, mask)


def silu_mul(gate_up: Tensor) -> Tensor:
    gate_up = gate_up.contiguous()
    tokens, columns = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(tokens, columns)
    if tokens:
        _silu_mul[(tokens, triton.cdiv(columns, _COLUMNS))](
            gate_up, out, columns, _COLUMNS, num_warps=4, **early(out.device)
        )
    return out


VARIANTS = tuple(
    Variant(
        dtype, _silu_mul, {"gate_up": f"*{dtype}", "out": f"*{dtype}", "columns": "i32"}, {"COLUMNS": _COLUMNS},
        aligned=("gate_up", "out", "columns"), early=True,
    )
    for dtype in ("bf16", "fp16", "fp32")
)
