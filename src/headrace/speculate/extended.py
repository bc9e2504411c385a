"""A model's drafts, and behind them what followed the last time that the sequence's newest tokens stood in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from headrace.speculate.device_lookup import DeviceLookup
from headrace.speculate.drafter import Asked, DeviceDrafter, Proposal, Seen
from headrace.types import Admission


class Extended:
    """`model` with `lookup` behind it, which proposes more. A row of which lookup knows nothing has the model's drafts alone.

    Lookup goes on from the newest tokens, not from the model's drafts: what it puts behind them is worth something where
    the two agree, and where they do not the target says so at the model's drafts already, or at the first behind them.
    """

    def __init__(self, model: DeviceDrafter, lookup: DeviceLookup) -> None:
        if lookup.most <= model.most:
            raise ValueError(f"lookup of {lookup.most} drafts extends none of {model.most}")
        self._model, self._lookup = model, lookup
        self.most, self.depths = lookup.most, (*model.depths, lookup.most)
        self.taps, self.reads_pages, self.draws, self.weights = model.taps, model.reads_pages, model.draws, model.weights

    @property
    def nbytes(self) -> int:
        return self._model.nbytes + self._lookup.nbytes

    def admit(self, admissions: Sequence[Admission]) -> None:
        self._model.admit(admissions)
        self._lookup.admit(admissions)

    def settle(self, slots: Sequence[int]) -> None:
        self._model.settle(slots)
        self._lookup.settle(slots)

    def observe(self, seen: Seen) -> Tensor:
        self._model.observe(seen)
        return self._lookup.observe(seen).clamp(min=self._model.most)

    def propose(self, asked: Asked) -> Proposal:
        own = min(asked.most, self._model.most)
        made = self._model.propose(replace(asked, counts=asked.counts.clamp(max=own), most=own)).tokens
        if asked.most == own:
            return Proposal(made)
        return Proposal(torch.cat([made, self._lookup.propose(asked).tokens[:, own:]], 1))
