"""The first tokens of a row in one total order: higher logit first, lower token id first among equals.

A fixed order among equal logits makes a draw independent of the algorithm, the device and the batch that found it.
"""

from __future__ import annotations

import torch
from torch import Tensor

GPU_BLOCK_ELEMENTS = 2**21
"""Logits that are ranked at once on a GPU at most, which bounds the temporaries: some 64 bytes each."""


def ranked_in_blocks(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As `ranked`, with bounded temporaries on a GPU."""
    blocks = torch.split(logits, gpu_block_rows(logits.shape[-1])) if logits.is_cuda else (logits,)
    values, tokens = zip(*(ranked(block, k) for block in blocks), strict=True)
    return torch.cat(values), torch.cat(tokens)


def gpu_block_rows(vocab: int) -> int:
    return max(1, GPU_BLOCK_ELEMENTS // vocab)


def ranked(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and token ids [R, min(k, V)] of the first k tokens of each row of logits [R, V], in order.

    Sorts the vocabulary only where k is more than a quarter of it, or where k cuts through a run of equal logits.
    """
    k = min(k, logits.shape[-1])
    if 4 * k > logits.shape[-1] or (logits.is_cuda and logits.dtype == torch.float64):
        return _by_sort(logits, k)
    return _by_packed_keys(logits, k) if logits.is_cuda else _by_topk(logits, k)


def _by_sort(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, tokens = torch.sort(logits, dim=-1, descending=True, stable=True)
    return values[:, :k], tokens[:, :k]


def _by_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """torch.topk leaves open which of several equal logits it returns; one more than asked for shows whether that matters.

    The look at the result would wait for a device, so this is the CPU's way.
    """
    values, tokens = torch.topk(logits, k + 1, dim=-1)  # [R, k + 1]
    cut = values[:, k - 1] == values[:, k]
    tokens, order = tokens[:, :k].sort(dim=-1)
    values, order = values[:, :k].gather(1, order).sort(dim=-1, descending=True, stable=True)
    tokens = tokens.gather(1, order)
    if cut.any():
        values[cut], tokens[cut] = _by_sort(logits[cut], k)
    return values, tokens


def _by_packed_keys(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """float32 logits and token ids packed into int64 keys, all different, which sort as the pairs do."""
    bits = (logits + 0.0).view(torch.int32)  # + 0.0: -0.0 equals 0.0
    bits ^= (bits >> 31).bitwise_and_(0x7FFFFFFF)  # negative floats count backwards
    last = logits.shape[-1] - 1
    backwards = torch.arange(last, -1, -1, device=logits.device)
    keys = torch.topk(bits.long().bitwise_left_shift_(32).add_(backwards), k, dim=-1).values
    tokens = last - (keys & 0xFFFFFFFF)
    return logits.gather(1, tokens), tokens
