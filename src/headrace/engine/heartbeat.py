"""When the engine process tells the front that its loop turns, and when it sends figures along."""

from __future__ import annotations

HEARTBEAT_S = 0.5
"""The longest an idle loop is silent."""
STATS_EVERY_S = 0.05
"""The shortest time between two reports of figures, and between two steps' reports without events."""


class Pulse:
    """Decides from the clock alone. `now_s` is a monotonic clock."""

    def __init__(self) -> None:
        self._reported_s = float("-inf")
        self._idle = False

    def stats_due(self, now_s: float, *, idle: bool) -> bool:
        """Whether to report figures now: at times, and at once when the last request has ended, so that they settle."""
        due = now_s - self._reported_s >= STATS_EVERY_S or (idle and not self._idle)
        self._idle = idle
        if due:
            self._reported_s = now_s
        return due
