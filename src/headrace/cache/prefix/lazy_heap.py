"""A heap whose entries are checked when they come up, instead of being moved when what they stand for changes."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
Priority = tuple[float, int]
"""Worth, and when it was last used: of two of the same worth the one used longer ago comes up first."""
_SLACK = 1024


class LazyHeap(Generic[T]):
    """Entries by a priority that may be too low by now. alive: whether an entry of this priority still stands for something.

    Dead entries are dropped when they come up, and all at once when they may be most of the heap.
    """

    def __init__(self, alive: Callable[[Priority, T], bool]) -> None:
        self._alive = alive
        self._entries: list[tuple[Priority, int, T]] = []
        self._count = 0
        self._limit = _SLACK

    def push(self, priority: Priority, item: T) -> None:
        self._count += 1
        heapq.heappush(self._entries, (priority, self._count, item))
        if len(self._entries) > self._limit:
            self._entries = [entry for entry in self._entries if self._alive(entry[0], entry[2])]
            heapq.heapify(self._entries)
            self._limit = 2 * len(self._entries) + _SLACK

    def pop(self) -> tuple[Priority, T] | None:
        """The entry of least priority, or None when there is no living one."""
        while self._entries:
            priority, _, item = heapq.heappop(self._entries)
            if self._alive(priority, item):
                return priority, item
        return None
