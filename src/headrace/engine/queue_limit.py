"""How many requests an engine holds, and when one that was turned away should come back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from headrace.errors import QueueFullError
from headrace.quantities import counted

RATE_WINDOW_S = 30.0
LONGEST_RETRY_S = 60
UNKNOWN_RETRY_S = 5


class QueueLimit:
    """At most `capacity` requests between `enter` and `leave`."""

    def __init__(self, capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.capacity = capacity
        self.held = 0
        self._clock = clock
        self._turned_away = 0  # since a request was last let in
        self._ended = 0.0  # decays with RATE_WINDOW_S, so that _ended / RATE_WINDOW_S is a recent rate
        self._ended_at_s = self._started_s = clock()

    def enter(self) -> None:
        """Raises QueueFullError when there is no room."""
        if self.held >= self.capacity:
            self._turned_away += 1
            raise QueueFullError(
                f"the engine holds {counted(self.held, 'request')}, as many as it accepts; try again later",
                retry_after_s=self.retry_after_s(),
            )
        self._turned_away = 0
        self.held += 1

    def leave(self) -> None:
        self.held -= 1
        self._decay()
        self._ended += 1.0

    def retry_after_s(self) -> int:
        """The time that it takes, at the recent rate, for as many to end as were turned away before and this one."""
        self._decay()
        # A young exponential window has seen only this share of its weight.
        seen = 1.0 - math.exp(-(self._clock() - self._started_s) / RATE_WINDOW_S)
        if self._ended < 1e-3 or seen <= 0.0:
            return UNKNOWN_RETRY_S
        ends_per_s = self._ended / (RATE_WINDOW_S * seen)
        return max(1, min(LONGEST_RETRY_S, math.ceil(self._turned_away / ends_per_s)))

    def _decay(self) -> None:
        now_s = self._clock()
        self._ended *= math.exp((self._ended_at_s - now_s) / RATE_WINDOW_S)
        self._ended_at_s = now_s
