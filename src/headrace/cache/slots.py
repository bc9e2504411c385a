"""State slots: one for each running sequence."""

from __future__ import annotations

import heapq


class SlotPool:
    """Slot ids 0 ... slots - 1, the lowest free one first, so that few sequences use few rows of the per-slot tensors."""

    def __init__(self, slots: int) -> None:
        self.total = slots
        self._free = list(range(slots))

    @property
    def free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        """A slot. The caller has checked `free`."""
        return heapq.heappop(self._free)

    def release(self, slot: int) -> None:
        heapq.heappush(self._free, slot)
