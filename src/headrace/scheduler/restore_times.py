"""How long it took until what was asked for again was back, as a histogram for each tier."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from headrace.types import RESTORE_BUCKETS_S, RestoreTimes


class TierTimes:
    """Of one tier."""

    def __init__(self, tier: str) -> None:
        self._tier = tier
        self._sum_s = 0.0
        self._counts = [0] * (1 + len(RESTORE_BUCKETS_S))

    def add(self, seconds: Iterable[float]) -> None:
        for each in seconds:
            self._sum_s += each
            self._counts[bisect_left(RESTORE_BUCKETS_S, each)] += 1

    def read(self) -> RestoreTimes:
        return RestoreTimes(self._tier, self._sum_s, tuple(self._counts))
