"""One pass over the vocabulary, whose groups of neighbouring tokens have a maximum each.

The `count` groups of the highest maxima hold the `count` highest logits, whatever the order among equals: each of those groups
has one that is not below any logit of the others. What is left of the vocabulary behind the last whole group is looked at too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.precision import accumulation_dtype

GROUP = 64


def top_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    rows, vocab = logits.shape
    whole = vocab // GROUP * GROUP
    maxima = logits[:, :whole].reshape(rows, whole // GROUP, GROUP).amax(2)
    groups = torch.topk(maxima, min(count, maxima.shape[1]), 1).indices  # [N, count]
    inside = (groups[..., None] * GROUP + torch.arange(GROUP, device=logits.device)).flatten(1)
    rest = torch.arange(whole, vocab, device=logits.device).expand(rows, -1)
    looked_at = torch.cat((inside, rest), 1)
    values, places = torch.topk(logits.gather(1, looked_at), count, 1)
    return values.to(accumulation_dtype(logits.dtype)), looked_at.gather(1, places)
