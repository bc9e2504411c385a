"""The definition of candidate_scores in plain PyTorch."""

from __future__ import annotations

from torch import Tensor


def candidate_scores(
    unary: Tensor, candidates: Tensor, before: Tensor, hidden: Tensor, predecessors: Tensor, successors: Tensor
) -> Tensor:
    context = predecessors[before].to(unary.dtype) * hidden.to(unary.dtype)  # [R, K]
    return unary + (successors[candidates].to(unary.dtype) * context[:, None]).sum(2)
