"""Where the rows of a step with drafts are, which their slots alone know."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.dispatch import runs_triton_on
from headrace.kernels.row_positions import reference


def row_positions(
    slots: Tensor, counts: Tensor, positions: Tensor, ends: Tensor, frozen: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Rows of `width` tokens in slots [R], with counts [R] drafts, of S slots of which the last is padding.

    -> live [R] int64: slots, the padding slot for those that are frozen [S] bool. at [R * width] int64: each token's position,
    positions[live] + 0, 1, ... lengths [R] int32: tokens of the sequence with the row. first [R] int64: the position behind
    its first token. written [R * width] bool: whether the token's keys and values have a place, as a row's first token and its
    drafts have at positions below ends[live].
    """
    if runs_triton_on(slots.device):
        from headrace.kernels.row_positions import triton

        return triton.row_positions(slots, counts, positions, ends, frozen, width)
    return reference.row_positions(slots, counts, positions, ends, frozen, width)
