"""Cosines and sines in one launch. CUDA's own functions keep a table for large angles on the stack; these have none.

An angle less the nearest multiple of pi / 2, taken in float64, is at most pi / 4 and exact to 1e-9 for angles up to 2^24; there
the polynomials are exact to 1e-8. They are the minimax ones of the Cephes library (Moshier), for float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.dispatch import early
from headrace.kernels.tile import await_previous, let_next_start
from headrace.kernels.variant import Variant


@triton.jit
def _turn(positions, frequencies, cos, sin, count, COUNT: tl.constexpr, EARLY: tl.constexpr):
    """One position a program; count <= COUNT frequencies."""
    let_next_start(EARLY)
    i = tl.arange(0, COUNT)
    frequency = tl.load(frequencies + i, mask=i < count, other=0.0)
    await_previous(EARLY)
    angle = tl.load(positions + tl.program_id(0)).to(tl.float32) * frequency
    quarter = (angle.to(tl.float64) * 0.6366197723675814 + 0.5).to(tl.int64)  # angles are not negative
    x = (angle.to(tl.float64) - quarter.to(tl.float64) * 1.5707963267948966).to(tl.float32)
    y = x * x
    even = 1.0 - 0.5 * y + y * y * (4.166664568298827e-2 + y * (-1.388731625493765e-3 + y * 2.443315711809948e-5))
    odd = x + x * y * (-1.6666654611e-1 + y * (8.3321608736e-3 + y * -1.9515295891e-4))
    swapped, turned = (quarter & 1) == 1, quarter & 3
    c, s = tl.where(swapped, odd, even), tl.where(swapped, even, odd)
    at = tl.program_id(0).to(tl.int64) * count + i
    tl.store(cos + at, tl.where((turned == 1) | (turned == 2), -c, c), mask=i < count)
    tl.store(sin + at, tl.where(turned >= 2, -s, s), mask=i < count)


def angles(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    assert dtype == torch.float32
    count = len(frequencies)
    cos, sin = (frequencies.new_empty(len(positions), 1, count) for _ in range(2))
    if len(positions):
        _turn[(len(positions),)](
            positions, frequencies, cos, sin, count, triton.next_power_of_2(count), num_warps=1, **early(cos.device)
        )
    return cos, sin


VARIANTS = tuple(
    Variant(
        str(count), _turn, {"positions": "*i64", "frequencies": "*fp32", "cos": "*fp32", "sin": "*fp32", "count": "i32"},
        {"COUNT": count}, num_warps=1, aligned=("positions", "frequencies", "cos", "sin", "count"), early=True,
        reads_early=("frequencies",),
    )
    for count in (32, 64)
)
