"""Bytes of masks of allowed tokens: for each token that a row may yield a bit for each of the vocabulary, in words of 32; and
for every slot the position that its next token is drawn for and the number of each place's mask, int64.
"""

from __future__ import annotations

_WORD_BITS, _WORD_BYTES, _NUMBER_BYTES = 32, 4, 8


def mask_bytes(vocab_size: int, drafts: int) -> int:
    """Of one slot, exactly as `kernels.forbid_tokens.TokenMasks` allocates it, whose rows have at most so many drafts."""
    places = 1 + drafts
    return places * -(-vocab_size // _WORD_BITS) * _WORD_BYTES + (1 + places) * _NUMBER_BYTES
