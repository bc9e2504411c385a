"""How far each slot's sequence is, on the device: where drafts are verified, the host learns of it later."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.cache.layout import CacheLayout
from headrace.types import Admission


class Progress:
    """positions, ends [slots] int64, frozen [slots] bool; the last slot is padding, at 0 and never frozen.

    positions: of the slot's next input; tokens before it are computed, accepted drafts with them. ends: the first position that
    is never computed, since the message's last token lies there at the latest. frozen: the message has ended.
    """

    def __init__(self, layout: CacheLayout, device: torch.device) -> None:
        self.padding_slot = layout.slots
        self.positions, self.ends = torch.zeros(2, layout.pool_slots, dtype=torch.int64, device=device).unbind()
        self.frozen = torch.zeros(layout.pool_slots, dtype=torch.bool, device=device)

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Their slots are at the start of a new sequence."""
        for admission in admissions:
            request = admission.request
            self.positions[admission.slot] = 0
            self.ends[admission.slot] = len(request.prompt) + max(0, request.max_tokens - 1)
            self.frozen[admission.slot] = False

    def live(self, slots: Tensor) -> Tensor:
        """slots [R] with the padding slot in place of frozen ones: a row in flight behind a message's end changes nothing."""
        return torch.where(self.frozen[slots], self.padding_slot, slots)

    def places(self, slots: Tensor, positions: Tensor) -> Tensor:
        """slots [T] with the padding slot where keys and values of positions [T] have no page, behind the sequence's end."""
        return torch.where(positions < self.ends[slots], slots, self.padding_slot)

    def move(self, slots: Tensor, tokens: Tensor) -> None:
        """Live slots [R] are tokens [R] int64 further."""
        moved = torch.where(slots == self.padding_slot, 0, self.positions[slots] + tokens)
        self.positions.index_copy_(0, slots, moved)

    def freeze(self, slots: Tensor, ended: Tensor) -> None:
        """Of live slots [R], those whose message has ended [R] bool."""
        self.frozen.index_copy_(0, slots, ended & (slots != self.padding_slot))
