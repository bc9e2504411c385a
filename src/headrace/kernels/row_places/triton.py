"""One launch, a program for each row and group."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.dispatch import early
from headrace.kernels.tile import await_previous, let_next_start
from headrace.kernels.variant import Variant

MOST_TOKENS = tl.constexpr(16)


@triton.jit(do_not_specialize=["width", "count", "most"])
def _look_up(
    tables, newest, offsets, at, written, drafts, proposed, slots, nowhere, tokens, places, width, count, most, page_tokens,
    EARLY: tl.constexpr,
):
    """Grid [R, G]. width: of a table; count: T; most: K."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row, group, place = tl.program_id(0), tl.program_id(1), tl.arange(0, MOST_TOKENS)
    begin = tl.load(offsets + row)
    inside, token = place < tl.load(offsets + row + 1) - begin, begin + place
    if group == 0:
        draft = tl.load(drafts + token, mask=inside, other=0)
        kept = proposed + tl.load(slots + row) * most + place - 1
        draft = tl.load(kept, mask=inside & (draft < 0) & (place > 0) & (place <= most), other=0) + tl.maximum(draft, 0)
        tl.store(tokens + token, tl.where(place == 0, tl.load(newest + row), draft), mask=inside)
    table = tables + (group * tl.num_programs(0) + row).to(tl.int64) * width
    position, kept = tl.load(at + token, mask=inside, other=0), tl.load(written + token, mask=inside, other=0) != 0
    page = tl.load(table + position // page_tokens, mask=inside & kept, other=0)
    found = tl.where(kept, page * page_tokens + position % page_tokens, tl.load(nowhere + group))
    tl.store(places + group.to(tl.int64) * count + token, found, mask=inside)


def row_places(
    tables: Tensor, newest: Tensor, offsets: Tensor, at: Tensor, written: Tensor, drafts: Tensor, proposed: Tensor,
    slots: Tensor, nowhere: Tensor, page_tokens: int,
) -> tuple[Tensor, Tensor]:
    groups, rows, width = tables.shape
    count = len(at)
    tokens, places = at.new_empty(count), at.new_empty(groups, count)
    _look_up[(rows, max(groups, 1))](
        tables, newest, offsets, at, written, drafts, proposed, slots, nowhere, tokens, places, width, count,
        proposed.shape[1], page_tokens, num_warps=1, **early(at.device),
    )
    return tokens, places


_INT64 = ("tables", "newest", "at", "drafts", "proposed", "slots", "nowhere", "tokens", "places")
_SIGNATURE = dict.fromkeys(_INT64, "*i64") | {"offsets": "*i32", "written": "*i1"}
VARIANTS = (
    Variant(
        "rows", _look_up, _SIGNATURE | dict.fromkeys(("width", "count", "most", "page_tokens"), "i32"), num_warps=1, early=True
    ),
)
