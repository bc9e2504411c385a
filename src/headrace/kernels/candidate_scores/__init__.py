"""How well each candidate for a place follows the token before it."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.candidate_scores import reference
from headrace.kernels.dispatch import runs_triton


def candidate_scores(
    unary: Tensor, candidates: Tensor, before: Tensor, hidden: Tensor, predecessors: Tensor, successors: Tensor
) -> Tensor:
    """unary [R, C] float32 or wider, candidates [R, C], before [R] int64; hidden [R, K], predecessors, successors [V, K].

    scores[r, c] = unary[r, c] + sum over k of predecessors[before[r], k] hidden[r, k] successors[candidates[r, c], k], as
    unary. Source: the candidate selector of DFlash2. Rows of unary, candidates and hidden may lie apart.
    """
    if runs_triton(hidden):
        from headrace.kernels.candidate_scores import triton

        return triton.candidate_scores(unary, candidates, before, hidden, predecessors, successors)
    return reference.candidate_scores(unary, candidates, before, hidden, predecessors, successors)
