"""Whether the engine's loop keeps up with the device: small models wait for their host. No torch."""

from __future__ import annotations

import math
from collections import deque

_STEPS = 16
_WAITED = 0.1


class LoopTime:
    """Told of every step how long after the one before it was over, and how long the loop waited for the device in between.

    Pauses and other processes delay some steps. Where three quarters of the last ones were over next to no time after the loop
    looked, the host is what they took their time from. That is measured, and not guessed from what the device should take: a
    device slower than thought is waited for.
    """

    def __init__(self) -> None:
        self._last: deque[tuple[float, float, bool]] = deque(maxlen=_STEPS)  # taken by the host; waited, and whether notably

    def note(self, taken_s: float, waited_s: float) -> None:
        self._last.append((taken_s - waited_s, waited_s, waited_s > _WAITED * taken_s))

    @property
    def least_s(self) -> float:
        """What the host takes for a step, the overlapped loop's that works beside the device: what a quarter of them took at
        most. 0 where it keeps up.
        """
        kept_up = sum(notably for _, _, notably in self._last)
        if len(self._last) < _STEPS or kept_up > _STEPS // 4:
            return 0.0
        return sorted(taken for taken, _, _ in self._last)[_STEPS // 4]

    @property
    def spare_s(self) -> float:
        """What the host may take longer for a step without the device waiting for it: what it waited in three quarters of the
        last ones. No end to it where nothing is known.
        """
        return sorted(waited for _, waited, _ in self._last)[_STEPS // 4] if len(self._last) == _STEPS else math.inf
