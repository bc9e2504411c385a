"""Three launches: a program for each row that writes, many for each row that search, one for each row that reads."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels import lookup_drafts
from headrace.kernels.dispatch import early
from headrace.kernels.tile import await_previous, let_next_start
from headrace.kernels.variant import Variant

_LONGEST = tl.constexpr(lookup_drafts.LONGEST)
_BLOCK, _KEPT, _MOST = 1024, 128, 16
_MOST_PARTS = 32
"""Programs of a row; each looks at every so many blocks."""


@triton.jit(do_not_specialize=["padding", "width"])
def _remember(
    history, matches, slots, offsets, tokens, starts, kept, next_tokens, padding, width, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(0)
    slot, begin = tl.load(slots + row), tl.load(offsets + row)
    start, count = tl.load(starts + row), tl.load(kept + row)
    if slot != padding:
        out = history + slot * width + start
        for first in range(0, count, BLOCK):
            at = first + tl.arange(0, BLOCK)
            token = tl.load(tokens + begin + at, mask=at < count, other=0)
            tl.store(out + at, token.to(tl.int32), mask=at < count)
        tl.store(out + count, tl.load(next_tokens + slot).to(tl.int32))
        tl.store(matches + slot, 0)


@triton.jit(do_not_specialize=["padding", "width"])
def _find(
    history, matches, slots, starts, kept, padding, width, SHORTEST: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    """Grid [R, parts]. A match's key is its length and then its place, so that the largest is the one."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    slot = tl.load(slots + row)
    newest = tl.load(starts + row) + tl.load(kept + row)
    if slot != padding:
        text = history + slot * width
        best = tl.zeros((BLOCK,), tl.int64)
        for first in range(part * BLOCK, newest, parts * BLOCK):
            at = first + tl.arange(0, BLOCK).to(tl.int64)
            alive, length = at < newest, tl.zeros((BLOCK,), tl.int64)
            for back in tl.static_range(_LONGEST):
                alive &= at >= back
                wanted = tl.load(text + newest - back, mask=newest >= back, other=-2)
                alive &= tl.load(text + at - back, mask=alive, other=-1) == wanted
                length += alive.to(tl.int64)
            best = tl.maximum(best, tl.where(length >= SHORTEST, (length << 32) + at + 1, 0))
        found = tl.max(best)
        if found > 0:
            tl.atomic_max(matches + slot, found)


@triton.jit(do_not_specialize=["width", "most"])
def _continue(history, matches, slots, lengths, drafts, width, most, MOST: tl.constexpr, EARLY: tl.constexpr):
    let_next_start(EARLY)
    await_previous(EARLY)
    row, place = tl.program_id(0), tl.arange(0, MOST)
    slot = tl.load(slots + row)
    found = tl.load(matches + slot)
    begin = found & 0xFFFFFFFF
    at = begin + place % tl.maximum(tl.load(lengths + row) - begin, 1)
    draft = tl.load(history + slot * width + at, mask=(found > 0) & (place < most), other=0)
    tl.store(drafts + row * most + place, draft.to(tl.int64), mask=place < most)


def remember(
    history: Tensor, matches: Tensor, slots: Tensor, offsets: Tensor, tokens: Tensor, starts: Tensor, kept: Tensor,
    next_tokens: Tensor,
) -> None:
    _remember[(len(slots),)](
        history, matches, slots, offsets, tokens, starts, kept, next_tokens, len(history) - 1, history.shape[1], BLOCK=_KEPT,
        num_warps=1, **early(history.device),
    )


def find_matches(history: Tensor, matches: Tensor, slots: Tensor, starts: Tensor, kept: Tensor, shortest: int) -> None:
    width = history.shape[1]
    parts = min(_MOST_PARTS, -(-width // _BLOCK))
    _find[(len(slots), parts)](
        history, matches, slots, starts, kept, len(history) - 1, width, shortest, _BLOCK, num_warps=4, **early(history.device)
    )


def continuations(history: Tensor, matches: Tensor, slots: Tensor, lengths: Tensor, most: int) -> Tensor:
    drafts = slots.new_empty(len(slots), most)
    _continue[(len(slots),)](
        history, matches, slots, lengths, drafts, history.shape[1], most, _MOST, num_warps=1, **early(history.device)
    )
    return drafts


_ROWS = {"history": "*i32", "width": "i32"} | dict.fromkeys(("matches", "slots"), "*i64")
_KNOWN = dict.fromkeys(("starts", "kept"), "*i64") | {"padding": "i32"}
VARIANTS = (
    Variant("remember", _remember, _ROWS | _KNOWN | {"offsets": "*i32", "tokens": "*i64", "next_tokens": "*i64"},
            {"BLOCK": _KEPT}, num_warps=1, early=True),
    Variant("find", _find, _ROWS | _KNOWN, {"SHORTEST": 6, "BLOCK": _BLOCK}, early=True),
    Variant("continue", _continue, _ROWS | dict.fromkeys(("lengths", "drafts"), "*i64") | {"most": "i32"},
            {"MOST": _MOST}, num_warps=1, early=True),
)
