"""Draws of drafts from a drafter's scores."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.draw_candidates import draw_candidates
from headrace.kernels.sample import draw_on_device
from headrace.runner.sampler import Sampler


class DraftDraw:
    """`speculate.drafter.Draw` for rows at positions [R] of slots [R].

    Drafts are verified by sample-and-match, for which the noise may be the target's: the token that its noise favours is then
    the same as often as the two distributions allow. Penalties and the like are left to the target.
    """

    def __init__(self, sampler: Sampler, slots: Tensor, positions: Tensor) -> None:
        self._sampler, self._slots, self._positions = sampler, slots, positions

    def __call__(self, scores: Tensor, place: int, candidates: Tensor | None = None) -> Tensor:
        positions = self._positions + 1 + place
        if candidates is None and runs_triton(scores):
            return draw_on_device(scores, self._sampler.state, self._slots, positions)
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        tokens = torch.arange(scores.shape[1], device=scores.device) if candidates is None else candidates
        state = self._sampler.state
        return draw_candidates(wide, tokens.expand(scores.shape), self._slots, positions, state.integers, state.numbers)
