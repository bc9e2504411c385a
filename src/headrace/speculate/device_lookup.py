"""Drafts by lookup as a drafter on the device: `speculate.lookup` says what is proposed, `kernels.lookup_drafts` finds it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.kernels.lookup_drafts import continuations, find_matches, remember
from headrace.plan.draft_memory import lookup_bytes
from headrace.speculate.drafter import Asked, Proposal, Seen
from headrace.speculate.lookup import SHORTEST
from headrace.types import Admission


class DeviceLookup:
    """Keeps every slot's tokens, and where its newest ones stood before. slots: with padding; context: the longest sequence."""

    taps: tuple[int, ...] = ()
    reads_pages = False
    draws = False
    weights: tuple[Tensor, ...] = ()

    def __init__(self, most: int, slots: int, context: int, device: torch.device) -> None:
        self.most = most
        self.depths: tuple[int, ...] = (most,)
        self._history = torch.zeros(slots, context, dtype=torch.int32, device=device)
        self._matches = torch.zeros(slots, dtype=torch.int64, device=device)
        assert self.nbytes == slots * lookup_bytes(context)

    @property
    def nbytes(self) -> int:
        return self._history.nbytes + self._matches.nbytes

    def admit(self, admissions: Sequence[Admission]) -> None:
        for admission in admissions:
            known = torch.tensor((*admission.request.prompt, *admission.output), dtype=torch.int32)
            self._history[admission.slot, : len(known)].copy_(known, non_blocking=True)
            self._matches[admission.slot].fill_(0)

    def settle(self, slots: Sequence[int]) -> None:
        """A sequence's tokens come with it."""

    def observe(self, seen: Seen) -> Tensor:
        slots = seen.batch.slots
        remember(
            self._history, self._matches, slots, seen.batch.row_offsets, seen.batch.tokens, seen.starts, seen.kept,
            seen.next_tokens,
        )
        find_matches(self._history, self._matches, slots, seen.starts, seen.kept, SHORTEST)
        return (self._matches[slots] > 0) * self.most

    def propose(self, asked: Asked) -> Proposal:
        return Proposal(continuations(self._history, self._matches, asked.slots, asked.positions + 1, asked.most))
