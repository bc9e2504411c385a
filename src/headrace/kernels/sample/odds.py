"""What drafts were drawn from, kept by slot from their draw to their verification."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ODDS = 64
"""The most tokens that a draft is drawn among where its probability is wanted."""
ACCEPTING, RESIDUAL = 0x0A_CCE7_0D2A_F75, 0x2E51_D0A1_5EED
"""Added to a seed for the noise that accepts a draft, and for what is drawn instead: apart from each other, and from the noise
that drafts and tokens are drawn with.
"""


@dataclass(frozen=True, slots=True)
class Odds:
    """Of S slots and K drafts each.

    ids [S, K, ODDS] int32, chances [S, K, ODDS] float32: the tokens that a draft was drawn among, each once, -1 for none; and
    with which probability. counts [S, K] int32: the first so many of them; 0 where a draft is as good as a point mass. free [S]
    bool: whether the slot's request has no seed, so that its tokens may depend on what was drafted.
    """

    ids: Tensor
    chances: Tensor
    counts: Tensor
    free: Tensor

    @classmethod
    def allocate(cls, slots: int, drafts: int, device: torch.device) -> Odds:
        """Memory sized as `plan.draft_memory` says, in which every draft is a point mass."""
        return cls(
            ids=torch.zeros(slots, drafts, ODDS, dtype=torch.int32, device=device),
            chances=torch.zeros(slots, drafts, ODDS, device=device),
            counts=torch.zeros(slots, drafts, dtype=torch.int32, device=device),
            free=torch.zeros(slots, dtype=torch.bool, device=device),
        )

    def put(self, slots: Tensor, place: int, tokens: Tensor, chances: Tensor, known: Tensor) -> None:
        """Draft number `place` of slots [R] was drawn among tokens [R, C], C up to ODDS, with chances [R, C], where `known`."""
        count = tokens.shape[1]
        self.ids[:, place, :count].index_copy_(0, slots, tokens.int())
        self.chances[:, place, :count].index_copy_(0, slots, chances.to(self.chances.dtype))
        self.counts[:, place].index_copy_(0, slots, known.int() * count)


@dataclass(frozen=True, slots=True)
class Against:
    """The drafts that R rows of logits are drawn against: drafts [R] int64, of which each is its slot's number places [R] int64
    in `odds`; -1 where there is none that is known there.
    """

    odds: Odds
    drafts: Tensor
    places: Tensor

    def part(self, rows: slice | tuple[int, slice]) -> Against:
        """Of some rows; of one place in the first dimension, if there are two."""
        return Against(self.odds, self.drafts[rows], self.places[rows])
