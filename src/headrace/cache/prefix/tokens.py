"""Tokens as bytes, four each: runs of them are compared, cut and hashed as a whole."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

TOKEN_BYTES = 4


def encode(tokens: Iterable[int]) -> bytes:
    """Token ids, from 0 to 2**32 - 1, as bytes. Raises OverflowError for any other number."""
    return array("I", tokens).tobytes()


def common_tokens(a: bytes, b: bytes, b_first: int = 0) -> int:
    """How many tokens `a` and `b` from its token `b_first` on have in common at their beginnings."""
    count = min(len(a), len(b) - b_first * TOKEN_BYTES) // TOKEN_BYTES
    if count <= 0:
        return 0
    left = np.frombuffer(a, np.uint32, count)
    differs = left != np.frombuffer(b, np.uint32, count, b_first * TOKEN_BYTES)
    first = int(differs.argmax())
    return first if differs[first] else count
