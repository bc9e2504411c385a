from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels.rows import group_rows

CPU = torch.device("cpu")


def test_decode_rows_are_one_group_without_copies() -> None:
    (group,) = group_rows([1] * 5, CPU)
    x = torch.randn(5, 3)
    assert (group.count, group.tokens) == (5, 1)
    assert group.take(x).data_ptr() == x.data_ptr()


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12))
def test_groups_cover_each_token_once_with_its_row(row_tokens: list[int]) -> None:
    owner = torch.tensor([row for row, n in enumerate(row_tokens) for _ in range(n)])
    within = torch.tensor([t for n in row_tokens for t in range(n)])
    out = torch.full((len(owner),), -1)
    for group in group_rows(row_tokens, CPU):
        rows = torch.arange(len(row_tokens))[group.rows]
        assert torch.equal(group.take(owner), rows[:, None].expand(-1, group.tokens))
        assert torch.equal(group.take(within), torch.arange(group.tokens).expand(len(rows), -1))
        group.put(out, group.take(owner))
    assert torch.equal(out, owner)
