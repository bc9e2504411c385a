"""The split of rows into items, by Triton's interpreter: whatever the lengths, every key of a row is in one of its items."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.interpreted
pytest.importorskip("triton", reason="Triton has no build for this system")

ROWS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3000)), min_size=1, max_size=9)


@settings(max_examples=40, deadline=None)
@given(ROWS, st.integers(1, 70), st.sampled_from([None, 1, 77]), st.integers(0, 1))
def test_items_cover_each_row_once(rows: list[tuple[int, int]], target: int, window: int | None, least: int) -> None:
    from headrace.kernels.paged_attention.triton import SPLIT_QUERIES, STEP_TOKENS, PagedRows, _plan

    tokens = [n for n, _ in rows]
    lengths = [n + max(before, least) for n, before in rows]  # a row has a key of its own behind the least
    offsets = torch.tensor([0, *accumulate(tokens)], dtype=torch.int32)
    ends = torch.tensor(lengths, dtype=torch.int32)
    plan = _plan(PagedRows(torch.zeros(len(rows), 1), ends, offsets, tokens, 16, window, least), SPLIT_QUERIES, target, 3)
    items = [item for item in plan.items.tolist() if item[0] >= 0]
    assert plan.size == len(rows) + target
    covered: dict[int, list[tuple[int, int]]] = {}
    for at, (row, first, end, parts, first_token, row_tokens, length, row_first) in enumerate(items):
        covered.setdefault(row, []).append((first, end))
        assert (first_token, row_tokens, length) == (int(offsets[row]), tokens[row], lengths[row])
        first_item, row_parts = plan.row_items[row].tolist()
        assert parts == row_parts and row_first == first_item <= at < first_item + parts
    for row, (n, length) in enumerate(zip(tokens, lengths, strict=True)):
        if not 0 < n <= SPLIT_QUERIES:
            assert row not in covered and int(plan.row_items[row, 1]) == 0
            continue
        begin = max(least, length - n + 1 - window) if window else least
        edges = [begin, *(end for _, end in covered[row])]
        assert covered[row] == list(zip(edges, edges[1:], strict=False)) and edges[-1] == length
        assert all((end - first) % STEP_TOKENS == 0 for first, end in covered[row][:-1])
        assert all(first < end for first, end in covered[row])
