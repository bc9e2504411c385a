"""The lookup in one launch: a program takes a piece of one row's table, with the updates and the tokens that fall into it."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.dispatch import early
from headrace.kernels.tile import await_previous, let_next_start
from headrace.kernels.variant import Variant

_PIECE = 1_024
_UPDATES = 128


@triton.jit(do_not_specialize=["updates", "tokens", "width", "slots_in_all"])
def _look_up(
    entries, updated, pages, newest, slots, positions, newest_of, tables, places,
    updates, tokens, width, slots_in_all, page_tokens,
    PIECE: tl.constexpr, UPDATES: tl.constexpr, TOKENS: tl.constexpr, EARLY: tl.constexpr,
):
    """Grid [R, G, pieces of the width]. tokens: of a row, at most TOKENS. Programs of one slot write the same."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row, group, first = tl.program_id(0), tl.program_id(1), tl.program_id(2) * PIECE
    rows = tl.num_programs(0)
    slot = tl.load(slots + row)
    if (group == 0) & (first == 0):
        tl.store(newest_of + row, tl.load(newest + slot))
    begin = (group * slots_in_all + slot) * width
    own = entries + begin
    last = tl.minimum(first + PIECE, width)
    for done in range(0, updates, UPDATES):
        u = done + tl.arange(0, UPDATES)
        at = tl.load(updated + u, mask=u < updates, other=-1)
        page = tl.load(pages + u, mask=u < updates, other=0)
        tl.store(entries + at, page, mask=(at >= begin + first) & (at < begin + last))
    tl.debug_barrier()  # what other threads of the program stored is read below
    column = first + tl.arange(0, PIECE)
    out = tables + (group * rows + row).to(tl.int64) * width
    tl.store(out + column, tl.load(own + column, mask=column < last, other=0), mask=column < last)
    t = tl.arange(0, TOKENS)
    position = tl.load(positions + row * tokens + t, mask=t < tokens, other=-1)
    page_index = position // page_tokens
    here = (t < tokens) & (page_index >= first) & (page_index < last)
    page = tl.load(own + page_index, mask=here, other=0)
    place = page * page_tokens + position % page_tokens
    tl.store(places + (group * rows + row) * tokens + t, place, mask=here)


def slot_lookup(
    entries: Tensor, updated: Tensor, pages: Tensor, newest: Tensor, slots: Tensor, positions: Tensor, page_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    groups, count, width = entries.shape
    rows = len(slots)
    newest_of, tables = newest.new_empty(rows), entries.new_empty(groups, rows, width)
    places = entries.new_empty(groups, len(positions))
    tokens = len(positions) // rows
    _look_up[(rows, groups, triton.cdiv(width, _PIECE))](
        entries, updated, pages, newest, slots, positions, newest_of, tables, places, len(updated), tokens, width, count,
        page_tokens, _PIECE, _UPDATES, triton.next_power_of_2(tokens), num_warps=4, **early(entries.device),
    )
    return newest_of, tables, places


_TENSORS = ("entries", "updated", "pages", "newest", "slots", "positions", "newest_of", "tables", "places")
_NUMBERS = ("updates", "tokens", "width", "slots_in_all", "page_tokens")
VARIANTS = tuple(
    Variant(
        f"{tokens}-tokens", _look_up, dict.fromkeys(_TENSORS, "*i64") | dict.fromkeys(_NUMBERS, "i32"),
        {"PIECE": _PIECE, "UPDATES": _UPDATES, "TOKENS": tokens}, aligned=(*_TENSORS, "page_tokens"), early=True,
    )
    for tokens in (1, 8)
)
