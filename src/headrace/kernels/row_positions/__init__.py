"""Where the rows of a step with drafts are, which their slots alone know."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.dispatch import runs_triton_on
from headrace.kernels.row_positions import reference


def row_positions(
    slots: Tensor, offsets: Tensor, counts: Tensor, positions: Tensor, ends: Tensor, frozen: Tensor, tokens: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Rows in slots [R], row r of tokens offsets[r] ... offsets[r + 1] (int32 [R + 1], 1 to 16 a row, `tokens` in all).

    A row is its slot's next input, counts[r] drafts, and tokens that count for nothing. positions, ends, frozen are of S slots,
    the last of which is padding. -> live [R] int64: slots, the padding slot for those that are frozen. starts [R] int64:
    positions[live]. lengths [R] int32: tokens of the sequence with the row. Of each token, [T]: at int64, its position; owners
    int64, its row's live slot; written bool: whether its keys and values have a place, as the input and the drafts have at
    positions below ends[live].
    """
    if runs_triton_on(slots.device):
        from headrace.kernels.row_positions import triton

        return triton.row_positions(slots, offsets, counts, positions, ends, frozen, tokens)
    return reference.row_positions(slots, offsets, counts, positions, ends, frozen, tokens)
