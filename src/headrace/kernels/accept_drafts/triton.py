"""One launch, a program for each row, which looks at its tokens one after the other."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.accept_drafts.slots import DraftSlots, Drawn
from headrace.kernels.dispatch import early
from headrace.kernels.sample.slots import ENDS_MESSAGE
from headrace.kernels.tile import await_previous, let_next_start
from headrace.kernels.variant import Variant

_ENDS = tl.constexpr(ENDS_MESSAGE)


@triton.jit(do_not_specialize=["padding", "stride"])
def _accept(
    drawn, begins, tokens, last, counts, slots, positions, next_positions, ends, frozen, pending, parity, next_tokens, integers,
    marks, emitted, padding, stride, vocab, COUNTED: tl.constexpr, DEFERRED: tl.constexpr, EARLY: tl.constexpr,
):
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(0)
    slot, first, count = tl.load(slots + row), tl.load(positions + row) + 1, tl.load(counts + row)
    end, mark_of = tl.load(ends + slot), marks + slot * vocab
    at, draft = drawn + tl.load(begins + row), tokens + tl.load(last + row) + 1
    token = tl.load(at)
    ended = ((tl.load(mark_of + token) & _ENDS) != 0) | (first >= end)
    found = 1
    while (found <= count) & (ended == 0) & (token == tl.load(draft, mask=found <= count, other=-1)):
        at += stride
        draft += 1
        token = tl.load(at)
        ended = ((tl.load(mark_of + token) & _ENDS) != 0) | (first + found >= end)
        found += 1
    tl.store(emitted + row, found)
    if slot != padding:
        tl.store(next_positions + slot, first + found - 1)
        tl.store(frozen + slot, ended.to(tl.int8))
        if DEFERRED:
            tl.store(pending + slot, found - 1)
            tl.store(parity + slot, 1 - tl.load(parity + slot))
        if not COUNTED:
            tl.store(next_tokens + slot, token)
            tl.store(integers + slot * 4 + 3, tl.load(integers + slot * 4 + 3) + found)


def accept_drafts(
    drawn: Drawn, tokens: Tensor, last: Tensor, counts: Tensor, slots: Tensor, positions: Tensor, state: DraftSlots, *,
    counted: bool, deferred: bool,
) -> Tensor:
    rows = len(slots)
    emitted = slots.new_empty(rows)
    _accept[(rows,)](
        drawn.tokens, drawn.begins, tokens, last, counts, slots, positions, state.positions, state.ends,
        state.frozen.view(torch.int8), state.pending, state.parity, state.next_tokens, state.integers, state.marks, emitted,
        len(state.positions) - 1, drawn.stride, state.marks.shape[1], counted, deferred, num_warps=1, **early(tokens.device),
    )
    return emitted


_INT64 = ("drawn", "tokens", "counts", "slots", "positions", "next_positions", "ends", "next_tokens", "integers", "emitted")
_INT32 = ("begins", "last", "pending", "parity", "marks")
_SIGNATURE = (
    dict.fromkeys(_INT64, "*i64") | {"frozen": "*i8"} | dict.fromkeys(_INT32, "*i32")
    | dict.fromkeys(("padding", "stride", "vocab"), "i32")
)
VARIANTS = tuple(
    Variant(
        f"{'counted' if counted else 'counting'}{'-deferred' if deferred else ''}", _accept, _SIGNATURE,
        {"COUNTED": counted, "DEFERRED": deferred}, num_warps=1, early=True,
    )
    for counted, deferred in ((True, False), (True, True), (False, True))
)
