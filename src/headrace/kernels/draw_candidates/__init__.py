"""A draw among a few candidates, with the noise that the sampler draws the same position with."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.draw_candidates import reference

MOST = 1024
"""Candidates of a row that the kernel takes."""


def draw_candidates(
    scores: Tensor, candidates: Tensor, slots: Tensor, positions: Tensor, integers: Tensor, numbers: Tensor
) -> Tensor:
    """scores [R, C] float32 or wider of candidates [R, C] int64; slots, positions [R] int64 -> tokens [R] int64.

    Row r's token is the candidate of the largest score / T + gumbel(seed, positions[r], candidate), or, where its temperature T
    is 0, of the largest score; the first of equals. Seeds and temperatures are the slots': integers[:, 0] int64, numbers[:, 0]
    float64, as kernels.sample.SlotState has them; the noise is that of kernels.sample.
    """
    if runs_triton(scores) and scores.shape[1] <= MOST:
        from headrace.kernels.draw_candidates import triton

        return triton.draw_candidates(scores, candidates, slots, positions, integers, numbers)
    return reference.draw_candidates(scores, candidates, slots, positions, integers, numbers)
