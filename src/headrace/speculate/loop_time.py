"""What the engine's loop takes for a step beyond what the device does: small models wait for their host. No torch."""

from __future__ import annotations

from collections import deque

_STEPS = 16
_SLOWER = 1.15


class LoopTime:
    """Told of every step how long after the one before it came, and how long the device takes for that one.

    Prompts beside steps, pauses and other processes delay some steps. Where three quarters of the last ones took clearly longer
    than the device does, the host is what they waited for.
    """

    def __init__(self) -> None:
        self._taken: deque[tuple[float, float]] = deque(maxlen=_STEPS)

    def note(self, taken_s: float, device_s: float) -> None:
        self._taken.append((taken_s, device_s))

    @property
    def least_s(self) -> float:
        """What the host takes for a step, the overlapped loop's that works beside the device: what a quarter of them took at
        most. 0 where it keeps up.
        """
        quick = sum(taken < _SLOWER * device for taken, device in self._taken)
        if len(self._taken) < _STEPS or quick > _STEPS // 4:
            return 0.0
        return sorted(taken for taken, _ in self._taken)[_STEPS // 4]
