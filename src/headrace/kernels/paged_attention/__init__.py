"""Causal softmax attention of packed rows over paged keys and values: prefill chunks and decoding alike."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from headrace.kernels.paged_attention import reference
from headrace.kernels.paged_attention.reference import PagedRows


def plan_rows(
    page_table: Tensor,
    lengths: Tensor,
    row_tokens: Sequence[int],
    host_lengths: Sequence[int],
    page_tokens: int,
    window: int | None = None,
) -> PagedRows:
    """Where each row's keys lie and which of them it sees: made once a step for all layers of a cache group.

    page_table [R, max pages] int64, lengths [R] (tokens of each sequence, this step's included), row_tokens: the R rows'
    query tokens, the last ones of their sequence. window W: a query at position i sees keys i - W + 1 ... i only. Page
    table entries for tokens that no query of the row sees are never read, so no other sequence's memory is.
    """
    return reference.plan_rows(page_table, lengths, row_tokens, host_lengths, page_tokens, window)


def paged_attention(q: Tensor, keys: Tensor, values: Tensor, rows: PagedRows, scale: float) -> Tensor:
    """q [T, H, D], keys and values [pages, page_tokens, KV, D] -> softmax(scale q k^T + causal mask) v, [T, H, D] as q.

    Query head h reads key head h // (H / KV).
    """
    return reference.paged_attention(q, keys, values, rows, scale)


__all__ = ["PagedRows", "paged_attention", "plan_rows"]
