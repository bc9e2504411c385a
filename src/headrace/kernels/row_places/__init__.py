"""The tokens of rows with drafts, and where their keys and values go."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.dispatch import runs_triton_on
from headrace.kernels.row_places import reference


def row_places(
    tables: Tensor, newest: Tensor, offsets: Tensor, at: Tensor, written: Tensor, drafts: Tensor, proposed: Tensor,
    slots: Tensor, nowhere: Tensor, page_tokens: int,
) -> tuple[Tensor, Tensor]:
    """Rows r of tokens offsets[r] ... offsets[r + 1] (int32 [R + 1], 1 to 16 a row, T in all) -> (tokens [T], places [G, T]).

    tokens: newest[r] (int64 [R]) at a row's first token, drafts [T] int64 at the others, or where that is below 0, of the row's
    proposed[slots[r]] (int64 [S, K], [R]), the one of that place. places int64: the token at position at[t]
    (int64 [T]) lies in page tables[g, r, at[t] // page_tokens] (int64 [G, R, W]), at page * page_tokens + at[t] % page_tokens;
    where written [T] bool says no, at nowhere[g] (int64 [G]).
    """
    if runs_triton_on(tables.device):
        from headrace.kernels.row_places import triton

        return triton.row_places(tables, newest, offsets, at, written, drafts, proposed, slots, nowhere, page_tokens)
    return reference.row_places(tables, newest, offsets, at, written, drafts, proposed, slots, nowhere, page_tokens)
