"""Draws of drafts from a drafter's scores."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.draw_candidates import draw_candidates
from headrace.kernels.sample import Odds, draw_drafts
from headrace.kernels.sample.odds import ODDS
from headrace.kernels.sample.ranking import ranked_in_blocks
from headrace.runner.sampler import Sampler


class DraftDraw:
    """`speculate.drafter.Draw` for rows at positions [R] of slots [R].

    Of rows without a seed what a draft was drawn from is kept in `odds`, and it is verified by that. Others are verified by
    sample-and-match, for which the noise may be the target's: the token that its noise favours is then the same as often as the
    two distributions allow. Penalties of rows with candidates are left to the target.
    """

    def __init__(self, sampler: Sampler, odds: Odds, slots: Tensor, positions: Tensor) -> None:
        self._sampler, self._odds, self._slots, self._positions = sampler, odds, slots, positions

    def __call__(self, scores: Tensor, place: int, candidates: Tensor | None = None) -> Tensor:
        positions, state = self._positions + 1 + place, self._sampler.state
        if candidates is None and runs_triton(scores):
            return draw_drafts(scores, state, self._slots, positions, self._odds, place)
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if candidates is None:
            wide, candidates = ranked_in_blocks(wide, ODDS)
        return draw_candidates(
            wide[:, :ODDS], candidates[:, :ODDS], self._slots, positions, state.integers, state.numbers, self._odds, place
        )
