"""The largest count for which something holds, by halving."""

from __future__ import annotations

from collections.abc import Callable


def most(fits: Callable[[int], bool], limit: int) -> int:
    """The largest count of 1 ... limit that fits, where fewer do if more do; 0 if none does."""
    if limit < 1 or not fits(1):
        return 0
    if fits(limit):
        return limit
    low, high = 1, limit - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
