"""The definition, in PyTorch's operations."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.forbid_tokens.masks import TokenMasks


def forbid_tokens(logits: Tensor, slots: Tensor, positions: Tensor, masks: TokenMasks) -> None:
    kept = masks.places[slots]  # [R, 1 + P]
    place, count = positions - kept[:, 0], kept.shape[1] - 1
    mask = kept.gather(1, place.clamp(0, count - 1)[:, None] + 1)[:, 0]
    mask = torch.where((place >= 0) & (place < count), mask, -1)
    if logits.is_cuda:  # a look at which rows have one would wait
        logits.masked_fill_((mask >= 0)[:, None] & ~_allowed(masks.words[mask.clamp(min=0)], logits), float("-inf"))
        return
    for row in (mask >= 0).nonzero()[:, 0].tolist():
        logits[row].masked_fill_(~_allowed(masks.words[mask[row]], logits), float("-inf"))


def _allowed(words: Tensor, logits: Tensor) -> Tensor:
    """[..., V] bool of words [..., W]."""
    bits = (words[..., None] >> torch.arange(32, dtype=torch.int32, device=words.device)) & 1
    return bits.flatten(-2)[..., : logits.shape[1]].bool()
