"""What the engine's loop takes for a step beyond what the device does: small models wait for their host. No torch."""

from __future__ import annotations

from collections import deque

_STEPS = 8
_SLOWER = 1.15


class LoopTime:
    """Told of every step how long after the one before it came, and how long the device takes for that one.

    Prompts beside steps, pauses and other processes delay some steps. Only where all of the last few took clearly longer than
    the device does, the host is what they waited for.
    """

    def __init__(self) -> None:
        self._taken: deque[tuple[float, float]] = deque(maxlen=_STEPS)

    def note(self, taken_s: float, device_s: float) -> None:
        self._taken.append((taken_s, device_s))

    @property
    def least_s(self) -> float:
        """What the host takes for a step, the overlapped loop's that works beside the device; 0 where it keeps up."""
        if len(self._taken) < _STEPS or any(taken < _SLOWER * device for taken, device in self._taken):
            return 0.0
        return min(taken for taken, _ in self._taken)
