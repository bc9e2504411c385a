"""The definition of accept_drafts in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.accept_drafts.slots import DraftSlots, Drawn
from headrace.kernels.sample.slots import ENDS_MESSAGE


def accept_drafts(
    drawn: Drawn, tokens: Tensor, last: Tensor, counts: Tensor, slots: Tensor, positions: Tensor, state: DraftSlots, *,
    counted: bool, deferred: bool,
) -> Tensor:
    place = torch.arange(drawn.most, device=tokens.device)[:, None]
    found = drawn.tokens[(drawn.begins + place * drawn.stride).clamp(max=len(drawn.tokens) - 1)]  # [most, R]
    drafts = tokens[(last + 1 + place[:-1]).clamp(max=len(tokens) - 1)]
    ended = ends_message(found, positions + 1 + place, slots, state)
    goes_on = (found[:-1] == drafts) & (place[:-1] < counts) & ~ended[:-1]
    emitted = 1 + goes_on.long().cumprod(0).sum(0)
    live, at = slots < len(state.positions) - 1, emitted[None] - 1

    def put(kept: Tensor, values: Tensor) -> None:
        kept.index_copy_(0, slots, torch.where(live, values.to(kept.dtype), kept[slots]))

    put(state.frozen, ended.gather(0, at)[0])
    put(state.positions, positions + emitted)
    if deferred:
        put(state.pending, emitted - 1)
        put(state.parity, 1 - state.parity[slots])
    if not counted:
        put(state.next_tokens, found.gather(0, at)[0])
        put(state.integers[:, 3], state.integers[slots, 3] + emitted)
    return emitted


def ends_message(tokens: Tensor, positions: Tensor, slots: Tensor, state: DraftSlots) -> Tensor:
    """Whether tokens [..., R] drawn for positions [..., R] end the messages of slots [R]."""
    return ((state.marks[slots, tokens] & ENDS_MESSAGE) != 0) | (positions >= state.ends[slots])
