"""The definition of slot_lookup in plain PyTorch."""

from __future__ import annotations

from torch import Tensor


def slot_lookup(
    entries: Tensor, updated: Tensor, pages: Tensor, newest: Tensor, slots: Tensor, positions: Tensor, page_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    entries.view(-1).index_copy_(0, updated, pages)
    tables = entries[:, slots]
    of_row = positions.view(len(slots), -1)  # [R, T / R]
    found = tables.gather(2, (of_row // page_tokens).expand(len(tables), -1, -1))
    return newest[slots], tables, (found * page_tokens + of_row % page_tokens).flatten(1)
