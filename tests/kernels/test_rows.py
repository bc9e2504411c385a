from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels.rows import PackedRows

CPU = torch.device("cpu")


def test_decode_rows_are_one_group_without_copies() -> None:
    (group,) = PackedRows([1] * 5, CPU).groups
    x = torch.randn(5, 3)
    assert (group.count, group.tokens) == (5, 1)
    assert group.take(x).data_ptr() == x.data_ptr()


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12))
def test_groups_cover_each_token_once_with_its_row(row_tokens: list[int]) -> None:
    owner = torch.tensor([row for row, n in enumerate(row_tokens) for _ in range(n)])
    within = torch.tensor([t for n in row_tokens for t in range(n)])
    out = torch.full((len(owner),), -1)
    for group in PackedRows(row_tokens, CPU).groups:
        rows = torch.arange(len(row_tokens))[group.rows]
        assert torch.equal(group.take(owner), rows[:, None].expand(-1, group.tokens))
        assert torch.equal(group.take(within), torch.arange(group.tokens).expand(len(rows), -1))
        group.put(out, group.take(owner))
    assert torch.equal(out, owner)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 4), st.integers(1, 4))
def test_pieces_cover_each_token_of_long_enough_rows_once(row_tokens: list[int], size: int, shortest: int) -> None:
    table = PackedRows(row_tokens, CPU).pieces(size, shortest)
    starts = [sum(row_tokens[:row]) for row in range(len(row_tokens))]
    wanted = [t for row, n in enumerate(row_tokens) if n >= shortest for t in range(starts[row], starts[row] + n)]
    assert (table is None) == (not wanted)
    if table is None:
        return
    found = []
    for row, start, tokens, before in table.pieces.tolist():
        assert (start, tokens) == (starts[row], row_tokens[row])
        found += range(start + before, start + min(tokens, before + size))
    assert found == wanted
    for row, start, tokens, piece in table.rows.tolist():
        assert table.pieces[piece].tolist() == [row, start, tokens, 0]


def test_singles_are_found_between_longer_rows() -> None:
    assert PackedRows([2, 3], CPU).singles is None
    singles = PackedRows([1, 3, 1, 2], CPU).singles
    assert singles is not None and isinstance(singles.rows, torch.Tensor) and isinstance(singles.at, torch.Tensor)
    assert (singles.rows.tolist(), singles.at.tolist()) == ([0, 2], [0, 4])


def test_tables_are_made_once() -> None:
    rows = PackedRows([3, 1], CPU)
    assert rows.pieces(2) is rows.pieces(2) and rows.groups is rows.groups
