"""How many of its drafts each row keeps, once the tokens behind all of them are drawn; its slot moves on by them."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.accept_drafts import reference
from headrace.kernels.accept_drafts.reference import ends_message
from headrace.kernels.accept_drafts.slots import DraftSlots
from headrace.kernels.dispatch import runs_triton_on

__all__ = ["DraftSlots", "accept_drafts", "ends_message"]


def accept_drafts(
    tokens: Tensor, drafts: Tensor, counts: Tensor, slots: Tensor, positions: Tensor, state: DraftSlots, *, counted: bool,
    deferred: bool,
) -> Tensor:
    """tokens [W, R] drawn behind a row's certain tokens and behind each of its drafts [W - 1, R] -> emitted [R], int64.

    Of drafts, counts [R] count. Row r yields tokens[0, r], and tokens[j + 1, r] for as long as tokens[j, r] is draft j and does
    not end the message: as EOS or a stop token id (by its mark), or at the last position, which is ends. positions [R]: of
    tokens[0]. slots [R]: where the row's slot is, the padding slot for rows that change nothing; others are distinct.

    In the slots: the position of the next input, whether the message has ended; unless `counted`, also the next input itself
    and the tokens generated; if `deferred`, what kernels.gated_delta_verify.advance says of the drafts that are kept.
    """
    if runs_triton_on(tokens.device):
        from headrace.kernels.accept_drafts import triton

        return triton.accept_drafts(
            tokens, drafts, counts, slots, positions, state, counted=counted, deferred=deferred
        )
    return reference.accept_drafts(tokens, drafts, counts, slots, positions, state, counted=counted, deferred=deferred)
