"""What the engine's loop takes beside the device, and whether it keeps up: small models wait for their host. No torch."""

from __future__ import annotations

import math
from collections import deque

_STEPS = 16
_WAITED = 0.1


class LoopTime:
    """Told of every step how long after the one before it was over, and how long the loop waited for the device in between.

    Pauses and other processes delay some steps, so what counts is what most of the last ones had. It is measured, and not
    guessed from what the device should take: a device slower than thought is waited for.
    """

    def __init__(self) -> None:
        self._last: deque[tuple[float, float, bool]] = deque(maxlen=_STEPS)  # taken by the host; waited, and whether notably

    def note(self, taken_s: float, waited_s: float) -> None:
        self._last.append((taken_s - waited_s, waited_s, waited_s > _WAITED * taken_s))

    @property
    def host_s(self) -> float:
        """What the host takes for a step, the overlapped loop's that works beside the device: what a quarter of them took at
        most. No step takes less. 0 where nothing is known.
        """
        return sorted(taken for taken, _, _ in self._last)[_STEPS // 4] if self._known else 0.0

    @property
    def keeps_up(self) -> bool:
        """Whether the host waited for the device in more than a quarter of them; where nothing is known, too."""
        return not self._known or sum(notably for _, _, notably in self._last) > _STEPS // 4

    @property
    def spare_s(self) -> float:
        """What the host may take longer for a step without the device waiting for it: what it waited in three quarters of
        them. No end to it where nothing is known.
        """
        return sorted(waited for _, waited, _ in self._last)[_STEPS // 4] if self._known else math.inf

    @property
    def _known(self) -> bool:
        return len(self._last) == _STEPS
