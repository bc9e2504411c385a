"""One launch, a program for each row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.dispatch import early
from headrace.kernels.tile import await_previous, let_next_start
from headrace.kernels.variant import Variant

MOST_TOKENS = tl.constexpr(16)


@triton.jit(do_not_specialize=["padding"])
def _place(
    slots, offsets, counts, positions, ends, frozen, live, starts, lengths, at, owners, written, padding, EARLY: tl.constexpr
):
    let_next_start(EARLY)
    await_previous(EARLY)
    row, place = tl.program_id(0), tl.arange(0, MOST_TOKENS)
    slot, begin = tl.load(slots + row), tl.load(offsets + row)
    width = tl.load(offsets + row + 1) - begin
    slot = tl.where(tl.load(frozen + slot) != 0, padding.to(tl.int64), slot)
    start, end, count = tl.load(positions + slot), tl.load(ends + slot), tl.load(counts + row)
    tl.store(live + row, slot)
    tl.store(starts + row, start)
    tl.store(lengths + row, (start + width).to(tl.int32))
    token, inside = begin + place, place < width
    tl.store(at + token, start + place, mask=inside)
    tl.store(owners + token, tl.zeros((MOST_TOKENS,), tl.int64) + slot, mask=inside)
    tl.store(written + token, ((place <= count) & (start + place < end)).to(tl.int8), mask=inside)


def row_positions(
    slots: Tensor, offsets: Tensor, counts: Tensor, positions: Tensor, ends: Tensor, frozen: Tensor, tokens: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows = len(slots)
    live, starts = slots.new_empty(rows), slots.new_empty(rows)
    at, owners = slots.new_empty(tokens), slots.new_empty(tokens)
    lengths, written = slots.new_empty(rows, dtype=torch.int32), slots.new_empty(tokens, dtype=torch.bool)
    _place[(rows,)](
        slots, offsets, counts, positions, ends, frozen.view(torch.int8), live, starts, lengths, at, owners,
        written.view(torch.int8), len(positions) - 1, num_warps=1, **early(slots.device),
    )
    return live, starts, lengths, at, owners, written


_SIGNATURE = dict.fromkeys(("slots", "counts", "positions", "ends", "live", "starts", "at", "owners"), "*i64") | {
    "offsets": "*i32", "lengths": "*i32", "frozen": "*i8", "written": "*i8", "padding": "i32"
}
VARIANTS = (Variant("rows", _place, _SIGNATURE, num_warps=1, early=True),)
