"""Bytes of the sampler's per-slot memory, and the shapes they come from.

Each slot has: four int64 and six float64 parameters; a sparse logit_bias of MAX_LOGIT_BIAS (token, number) pairs, which is
16 KiB where a dense row of a 248,320 token vocabulary would be 1 MB and cost a pass over the vocabulary in every step; one
int32 of marks for each token of the vocabulary (in the prompt, ends the message, times generated), so that penalties and
min_tokens need one read; and the next input token.
"""

from __future__ import annotations

from headrace.types import MAX_LOGIT_BIAS

_PARAMETERS = 4 + 6
_NEXT_TOKEN = 1
_WORD_BYTES = 8
_MARK_BYTES = 4


def sampler_bytes(slots: int, vocab_size: int) -> int:
    """Exactly what `runner.sampler.Sampler` allocates on its device for `slots` sequences, whatever the logits' dtype."""
    words = _PARAMETERS + 2 * MAX_LOGIT_BIAS + _NEXT_TOKEN
    return slots * (words * _WORD_BYTES + vocab_size * _MARK_BYTES)
