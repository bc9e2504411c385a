"""A draw among a few candidates, with the noise that the sampler draws the same position with."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.draw_candidates import reference
from headrace.kernels.sample.odds import ODDS, Odds


def draw_candidates(
    scores: Tensor, candidates: Tensor, slots: Tensor, positions: Tensor, integers: Tensor, numbers: Tensor, odds: Odds,
    place: int,
) -> Tensor:
    """scores [R, C] float32 or wider of candidates [R, C] int64; slots, positions [R] int64 -> tokens [R] int64.

    Row r's token is the candidate of the largest score / T + gumbel(seed, positions[r], candidate), or, where its temperature T
    is 0, of the largest score; the first of equals. Seeds and temperatures are the slots': integers[:, 0] int64, numbers[:, 0]
    float64, as kernels.sample.SlotState has them; the noise is that of kernels.sample.

    It is draft number `place` of its slot. If that is free in `odds`, which takes up to ODDS candidates, and T is above 0, then
    the draw is among what top_k, top_p and min_p leave of the candidates, and they are there with their probabilities.
    """
    if scores.shape[1] > ODDS:
        raise ValueError(f"odds are of {ODDS} candidates at most, not {scores.shape[1]}")
    if runs_triton(scores):
        from headrace.kernels.draw_candidates import triton

        return triton.draw_candidates(scores, candidates, slots, positions, integers, numbers, odds, place)
    return reference.draw_candidates(scores, candidates, slots, positions, integers, numbers, odds, place)
