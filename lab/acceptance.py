"""How well a drafter's distribution q covers the target's p, and the loss that is made of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

FADE = 0.85  # of a loss from one draft to the next: a later one counts only if those before it were accepted


def accepted(target: Tensor, drafted: Tensor) -> Tensor:
    """sum of min(p, q) over the vocabulary, the chance that a draft from q is accepted: logits [..., V] -> [...].

    Leviathan, Kalman and Matias, Fast Inference from Transformers via Speculative Decoding, 2023, theorem 3.5.
    """
    return torch.minimum(target.float().softmax(-1), drafted.float().softmax(-1)).sum(-1)


def drafter_loss(target: Tensor, drafted: Tensor) -> Tensor:
    """Cross entropy of q under p, and what of the mass is refused: [..., V] -> [...]. The first teaches where the second,
    which is the aim, has no gradient to speak of."""
    crossed = -(target.float().softmax(-1) * functional.log_softmax(drafted.float(), -1)).sum(-1)
    return 0.3 * crossed + (1 - accepted(target, drafted))


def faded(losses: Sequence[Tensor]) -> Tensor:
    """One number of each draft's mean loss, the first draft's first."""
    weights = [FADE**place for place in range(len(losses))]
    return sum((w * loss.mean() for w, loss in zip(weights, losses, strict=True)), torch.zeros(())) / sum(weights)


def expected_tokens(chances: Tensor) -> Tensor:
    """Of a verification whose draft j is accepted with chance [..., j]: 1 + a1 + a1 a2 + ..., [...]."""
    return 1 + chances.cumprod(-1).sum(-1)
