"""How many of its drafts each row keeps, once the tokens behind all of them are drawn; its slot moves on by them."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.accept_drafts import reference
from headrace.kernels.accept_drafts.reference import ends_message
from headrace.kernels.accept_drafts.slots import DraftSlots, Drawn
from headrace.kernels.dispatch import runs_triton_on

__all__ = ["DraftSlots", "Drawn", "accept_drafts", "ends_message"]


def accept_drafts(
    drawn: Drawn, tokens: Tensor, last: Tensor, counts: Tensor, slots: Tensor, positions: Tensor, state: DraftSlots, *,
    counted: bool, deferred: bool,
) -> Tensor:
    """What is drawn behind each row's last certain token and behind its drafts -> emitted [R] int64.

    Row r's last certain token is tokens[last[r]] of a batch (tokens [T] int64, last [R] int32), at positions[r] of its sequence
    (int64 [R]); the counts[r] (int64 [R]) behind it are drafts. It yields the token drawn first, and the next one for as long
    as the one before is the draft there and does not end the message: as EOS or a stop token id (by its mark), or at the
    position that is ends. slots int64 [R]: the rows', the padding slot for rows that change nothing; others are distinct.

    In the slots: the position of the next input, whether the message has ended; unless `counted`, also the next input itself
    and the tokens generated; if `deferred`, what kernels.gated_delta_verify.advance says of the drafts that are kept.
    """
    if runs_triton_on(tokens.device):
        from headrace.kernels.accept_drafts import triton

        return triton.accept_drafts(
            drawn, tokens, last, counts, slots, positions, state, counted=counted, deferred=deferred
        )
    return reference.accept_drafts(
        drawn, tokens, last, counts, slots, positions, state, counted=counted, deferred=deferred
    )
