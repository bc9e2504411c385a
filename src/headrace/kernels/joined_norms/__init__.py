"""What a multi-token head begins with, in one launch: norms of tokens' embeddings and of hidden states, side by side."""

from __future__ import annotations

from types import ModuleType

from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.joined_norms import reference
from headrace.kernels.joined_norms.rows import Before
from headrace.kernels.rms_norm import NormWeight

WIDEST = 16_384
"""Of hidden states, in a kernel."""


def joined_norms(
    tokens: Tensor, table: Tensor, hidden: Tensor, token_norm: NormWeight, hidden_norm: NormWeight, before: Before | None = None
) -> Tensor:
    """[T, 2 H] = token_norm(table[tokens[t]]) | hidden_norm(h_t), as hidden in type.

    tokens [T] int64, table [V, H], hidden [T, H]. h_t is hidden[t]; with `before` the hidden state before it in its row.
    """
    return _implementation(hidden).joined_norms(tokens, table, hidden, token_norm, hidden_norm, before)  # type: ignore[no-any-return]


def keep_last(before: Before, counts: Tensor, hidden: Tensor) -> None:
    """before.kept[slots[r]] = hidden[row_offsets[r] + counts[r] - 1], for each of R rows.

    counts [R] int64, hidden [T, H]. Of several rows of one slot any is kept: that is the padding slot.
    """
    _implementation(hidden).keep_last(before, counts, hidden)


def _implementation(hidden: Tensor) -> ModuleType:
    if runs_triton(hidden) and hidden.shape[1] <= WIDEST:
        from headrace.kernels.joined_norms import triton

        return triton
    return reference


__all__ = ["Before", "joined_norms", "keep_last"]
