"""Whether the engine's loop keeps up with the device: small models wait for their host. No torch."""

from __future__ import annotations

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
        self._taken: deque[tuple[float, bool]] = deque(maxlen=_STEPS)  # by the host, and whether it waited

    def note(self, taken_s: float, waited_s: float) -> None:
        self._taken.append((taken_s - waited_s, waited_s > _WAITED * taken_s))

    @property
    def least_s(self) -> float:
        """What the host takes for a step, the overlapped loop's that works beside the device: what a quarter of them took at
        most. 0 where it keeps up.
        """
        kept_up = sum(waited for _, waited in self._taken)
        if len(self._taken) < _STEPS or kept_up > _STEPS // 4:
            return 0.0
        return sorted(taken for taken, _ in self._taken)[_STEPS // 4]
