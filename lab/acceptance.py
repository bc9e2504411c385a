"""How well a drafter's distribution q covers the target's p, and the loss that is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

FADE = 0.85  # of a loss from one draft to the next: a later one counts only if those before it were accepted


@dataclass(frozen=True, slots=True)
class Draft:
    """One draft, at many places: the target's logits and the drafter's, [..., V]. candidates, scores [..., C]: the tokens that
    the drafter draws among, and their logits, where it does not draw of all.
    """

    wanted: Tensor
    logits: Tensor
    candidates: Tensor | None = None
    scores: Tensor | None = None


def accepted(draft: Draft) -> Tensor:
    """sum of min(p, q) over the vocabulary, the chance that a draft from q is accepted: [...].

    Leviathan, Kalman and Matias, Fast Inference from Transformers via Speculative Decoding, 2023, theorem 3.5.
    """
    return _shared(*_drawn(draft, _likely(draft)))


def drafter_loss(draft: Draft) -> Tensor:
    """Cross entropies of q under p, and what of the mass is refused: [...]. The first teach where the second, which is the aim,
    has no gradient to speak of: of all tokens, so that the candidates are the likely ones, and among these.
    """
    likely = _likely(draft)
    drawn = _drawn(draft, likely)
    crossed = _crossed(likely, draft.logits)
    if draft.scores is not None:
        crossed = crossed + _crossed(*drawn)
    return 0.3 * crossed + (1 - _shared(*drawn))


def _likely(draft: Draft) -> Tensor:
    return draft.wanted.float().softmax(-1)


def _drawn(draft: Draft, p: Tensor) -> tuple[Tensor, Tensor]:
    """The target's probabilities, p of all, of the tokens that are drawn among; and their logits."""
    if draft.candidates is None or draft.scores is None:
        return p, draft.logits.float()
    return p.gather(-1, draft.candidates), draft.scores.float()


def _shared(p: Tensor, logits: Tensor) -> Tensor:
    return torch.minimum(p, logits.softmax(-1)).sum(-1)


def _crossed(p: Tensor, logits: Tensor) -> Tensor:
    return -(p * functional.log_softmax(logits.float(), -1)).sum(-1)


def faded(losses: Sequence[Tensor]) -> Tensor:
    """One number of each draft's mean loss, the first draft's first."""
    weights = [FADE**place for place in range(len(losses))]
    return sum((w * loss.mean() for w, loss in zip(weights, losses, strict=True)), torch.zeros(())) / sum(weights)


def expected_tokens(chances: Tensor) -> Tensor:
    """Of a verification whose draft j is accepted with chance [..., j]: 1 + a1 + a1 a2 + ..., [...]."""
    return 1 + chances.cumprod(-1).sum(-1)
