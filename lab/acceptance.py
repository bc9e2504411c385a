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
    """One draft, at many places: the target's logits and the drafter's, [..., V]. said [...]: the token the text has there.
    candidates, scores [..., C]: the tokens that the drafter draws among, and their logits, where it does not draw of all.
    """

    wanted: Tensor
    logits: Tensor
    said: Tensor
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


def reached(drafts: Sequence[Draft]) -> Tensor:
    """How much a place counts to each draft, the first draft's first: [..., drafts], without gradients.

    A text that the target wrote has a token x with probability p(x), and drafts go on behind it with min(p(x), q(x)): each
    token before a draft counts min(1, q(x) / p(x)). So the sum of these weights times `accepted` is what a step yields.
    """
    with torch.no_grad():
        kept = torch.stack([_kept(draft) for draft in drafts], -1).cumprod(-1)
    return torch.cat([torch.ones_like(kept[..., :1]), kept[..., :-1]], -1)


def _kept(draft: Draft) -> Tensor:
    """min(1, q(x) / p(x)) of the text's tokens."""
    said = draft.said.unsqueeze(-1)
    p = draft.wanted.float().log_softmax(-1).gather(-1, said).squeeze(-1)
    if draft.candidates is None or draft.scores is None:
        q = draft.logits.float().log_softmax(-1).gather(-1, said).squeeze(-1)
    else:
        among = draft.candidates == said
        q = draft.scores.float().log_softmax(-1).masked_fill(~among, -torch.inf).amax(-1)
    return (q - p).clamp(max=0).exp()


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


def weighted_loss(drafts: Sequence[Draft]) -> Tensor:
    """One number of all drafts' losses: half by where drafts get to, half by a fixed share from each to the next, so that later
    ones learn before any get there.
    """
    losses, weights = torch.stack([drafter_loss(draft) for draft in drafts], -1), reached(drafts)
    fixed = FADE ** torch.arange(len(drafts), device=losses.device)
    weights = weights / weights.sum(-1).mean() + fixed / fixed.sum()
    return (losses * weights).sum(-1).mean() / 2


def expected_tokens(drafts: Sequence[Draft]) -> Tensor:
    """Of a verification, in the mean: that one draft more is accepted, of all drafts that are got to, and the token behind."""
    return 1 + (torch.stack([accepted(draft) for draft in drafts], -1) * reached(drafts)).sum(-1).mean()
