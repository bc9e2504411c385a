"""The definition of accept_drafts in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.accept_drafts.slots import DraftSlots
from headrace.kernels.sample.slots import ENDS_MESSAGE


def accept_drafts(
    tokens: Tensor, drafts: Tensor, counts: Tensor, slots: Tensor, positions: Tensor, state: DraftSlots, *, counted: bool,
    deferred: bool,
) -> Tensor:
    place = torch.arange(len(tokens), device=tokens.device)[:, None]
    ended = ends_message(tokens, positions + place, slots, state)
    goes_on = (tokens[:-1] == drafts) & (place[:-1] < counts) & ~ended[:-1]
    emitted = 1 + goes_on.long().cumprod(0).sum(0)
    live, last = slots < len(state.positions) - 1, emitted[None] - 1

    def put(kept: Tensor, values: Tensor) -> None:
        kept.index_copy_(0, slots, torch.where(live, values.to(kept.dtype), kept[slots]))

    put(state.frozen, ended.gather(0, last)[0])
    put(state.positions, positions + emitted - 1)
    if deferred:
        put(state.pending, emitted - 1)
        put(state.parity, 1 - state.parity[slots])
    if not counted:
        put(state.next_tokens, tokens.gather(0, last)[0])
        put(state.integers[:, 3], state.integers[slots, 3] + emitted)
    return emitted


def ends_message(tokens: Tensor, positions: Tensor, slots: Tensor, state: DraftSlots) -> Tensor:
    """Whether tokens [..., R] drawn for positions [..., R] end the messages of slots [R]."""
    return ((state.marks[slots, tokens] & ENDS_MESSAGE) != 0) | (positions >= state.ends[slots])
