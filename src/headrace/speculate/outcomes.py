"""What came of steps, put by until somebody learns from it: little work for each step. No torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Outcomes:
    """Of rows that had drafts verified, fewer than 256 each."""

    def __init__(self) -> None:
        self._slots: list[tuple[int, ...]] = []  # of each step
        self._drafted, self._accepted = bytearray(), bytearray()

    def __len__(self) -> int:
        """Steps."""
        return len(self._slots)

    def add(self, slots: Sequence[int], drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """A step's rows."""
        self._slots.append(tuple(slots))
        self._drafted += bytes(drafted)
        self._accepted += bytes(accepted)

    def take(self) -> tuple[Ints, Ints, Ints, list[int]]:
        """All of them, as `Acceptance.observe` takes them. One step at least."""
        of_rows = {slots: np.array(slots, dtype=np.int64) for slots in set(self._slots)}
        slots = np.concatenate([of_rows[slots] for slots in self._slots])
        drafted, accepted = (np.frombuffer(each, np.uint8).astype(np.int64) for each in (self._drafted, self._accepted))
        sizes = [len(slots) for slots in self._slots]
        self._slots, self._drafted, self._accepted = [], bytearray(), bytearray()
        return slots, drafted, accepted, sizes
