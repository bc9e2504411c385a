"""Attention of blocks of tokens, each over keys of its row that are kept in a ring, and over itself in both directions."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.block_attention import reference
from headrace.kernels.block_attention.ring import KeyRing
from headrace.kernels.dispatch import runs_triton

__all__ = ["KeyRing", "block_attention"]

LARGEST_HEAD = 128
"""Of heads that the kernel takes."""


def block_attention(
    q: Tensor, k: Tensor, v: Tensor, ring: KeyRing, slots: Tensor, starts: Tensor, window: int, scale: float
) -> Tensor:
    """softmax(scale q k^T + mask) v: [R B, H, D] as q. k, v [R B, KV, D]: of the blocks' own tokens.

    Row r's B tokens are at positions starts[r] ... (int64 [R]) of the sequence in slots[r] (int64 [R]). Each sees all tokens of
    its block, and of the slot's ring those before starts[r] that are fewer than `window` tokens before it; B is at most
    `window`. Query head h reads key head h // (H / KV). What no query of a row sees is never read.
    """
    if runs_triton(q) and q.shape[2] <= LARGEST_HEAD:
        from headrace.kernels.block_attention import triton

        return triton.block_attention(q, k, v, ring, slots, starts, window, scale)
    return reference.block_attention(q, k, v, ring, slots, starts, window, scale)
