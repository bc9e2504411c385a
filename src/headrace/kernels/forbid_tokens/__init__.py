"""Logits of tokens that a mask does not allow become -inf: whatever comes after, they have no probability."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.forbid_tokens import reference
from headrace.kernels.forbid_tokens.masks import TokenMasks

__all__ = ["TokenMasks", "forbid_tokens"]


def forbid_tokens(logits: Tensor, slots: Tensor, positions: Tensor, masks: TokenMasks) -> None:
    """Overwrites logits [R, V] of tokens that are not allowed at positions [R] int64 of slots [R] int64 by -inf.

    Row r is at place positions[r] - masks.places[slots[r], 0] of its slot; without a mask there it stays as it is.
    """
    if runs_triton(logits):
        from headrace.kernels.forbid_tokens import triton

        triton.forbid_tokens(logits, slots, positions, masks)
    else:
        reference.forbid_tokens(logits, slots, positions, masks)
