"""The definition, in PyTorch's operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.kernels.forbid_tokens.masks import TokenMasks

_BLOCK_ELEMENTS = 2**20


def forbid_tokens(logits: Tensor, slots: Tensor, positions: Tensor, masks: TokenMasks) -> None:
    kept = masks.places[slots]  # [R, 1 + P]
    place, count = positions - kept[:, 0], kept.shape[1] - 1
    mask = kept.gather(1, place.clamp(0, count - 1)[:, None] + 1)[:, 0]
    mask = torch.where((place >= 0) & (place < count), mask, -1)
    for rows in _blocks(mask >= 0, logits.shape[1]):
        gone = (mask[rows] >= 0)[:, None] & ~_allowed(masks.words[mask[rows].clamp(min=0)], logits.shape[1])
        logits[rows] = logits[rows].masked_fill(gone, float("-inf"))


def _blocks(masked: Tensor, vocab: int) -> Sequence[Tensor]:
    """Row numbers, a bounded number at a time: those with a mask, or, where a look at that would wait for a GPU, all."""
    rows = torch.arange(len(masked), device=masked.device) if masked.is_cuda else masked.nonzero()[:, 0]
    return torch.split(rows, max(1, _BLOCK_ELEMENTS // vocab))


def _allowed(words: Tensor, vocab: int) -> Tensor:
    """[n, V] bool of words [n, W]."""
    bits = (words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=words.device)) & 1
    return bits.flatten(1)[:, :vocab].bool()
