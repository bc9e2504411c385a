"""Pages of one cache group: which are free."""

from __future__ import annotations

from collections.abc import Sequence

GONE = -1
"""Stands in a page list for a page that fell behind its group's window."""

class PagePool:
    """Page ids 0 ... pages - 1, handed out and taken back.

    The most recently freed are used first, and in the order they had: pages that lay side by side do so again, and a CPU
    reads such a sequence without gathering it.
    """

    def __init__(self, pages: int) -> None:
        self.total = pages
        self._free = list(range(pages - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """`count` page ids. The caller has checked `free`."""
        if count > len(self._free):
            raise ValueError(f"{count} pages wanted, {len(self._free)} free")
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        taken.reverse()
        return taken

    def release(self, pages: Sequence[int]) -> None:
        """Take pages back. Each is owned by the caller and given back once."""
        self._free.extend(reversed(pages))
