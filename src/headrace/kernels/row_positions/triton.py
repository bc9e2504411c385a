"""One launch, a program for each row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.dispatch import early
from headrace.kernels.tile import await_previous, let_next_start
from headrace.kernels.variant import Variant


@triton.jit(do_not_specialize=["padding", "width"])
def _place(
    slots, counts, positions, ends, frozen, live, at, lengths, first, written, padding, width,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):
    let_next_start(EARLY)
    await_previous(EARLY)
    row, place = tl.program_id(0), tl.arange(0, BLOCK)
    slot = tl.load(slots + row)
    slot = tl.where(tl.load(frozen + slot) != 0, padding.to(tl.int64), slot)
    start, end, count = tl.load(positions + slot), tl.load(ends + slot), tl.load(counts + row)
    tl.store(live + row, slot)
    tl.store(lengths + row, (start + width).to(tl.int32))
    tl.store(first + row, start + 1)
    inside, token = place < width, row * width + place
    tl.store(at + token, start + place, mask=inside)
    tl.store(written + token, ((place <= count) & (start + place < end)).to(tl.int8), mask=inside)


def row_positions(
    slots: Tensor, counts: Tensor, positions: Tensor, ends: Tensor, frozen: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows = len(slots)
    live, first, at = slots.new_empty(rows), slots.new_empty(rows), slots.new_empty(rows * width)
    lengths, written = slots.new_empty(rows, dtype=torch.int32), slots.new_empty(rows * width, dtype=torch.bool)
    _place[(rows,)](
        slots, counts, positions, ends, frozen.view(torch.int8), live, at, lengths, first, written.view(torch.int8),
        len(positions) - 1, width, triton.next_power_of_2(width), num_warps=1, **early(slots.device),
    )
    return live, at, lengths, first, written


_SIGNATURE = dict.fromkeys(("slots", "counts", "positions", "ends", "live", "at", "first"), "*i64") | {
    "frozen": "*i8", "written": "*i8", "lengths": "*i32", "padding": "i32", "width": "i32"
}
VARIANTS = tuple(
    Variant(f"{width}-tokens", _place, _SIGNATURE, {"BLOCK": width}, num_warps=1, early=True) for width in (1, 8)
)
