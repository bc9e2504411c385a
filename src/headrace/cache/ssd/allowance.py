"""How many bytes of entries there may be: what the settings say, or less, where the disk has turned out to be full before."""

from __future__ import annotations

import errno

MARGIN_PARTS = 16
"""Of what entries could have on a full disk, one part in so many is left free."""
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


class Allowance:
    """most_bytes: what the settings say. bytes: what there may be now."""

    def __init__(self, most_bytes: int) -> None:
        self.bytes = self._most_bytes = most_bytes
        self._quota = False

    @property
    def learnt(self) -> bool:
        """Whether the disk has less than the settings say."""
        return self.bytes < self._most_bytes

    @property
    def may_grow(self) -> bool:
        """Whether what the file system has free can make it more: of a quota that says nothing."""
        return self.learnt and not self._quota

    def full(self, kept_bytes: int, entry_bytes: int, *, quota: bool) -> bool:
        """There was no space for an entry beside `kept_bytes` of others. Whether it can have the place of some of them."""
        if entry_bytes > kept_bytes:
            return False
        self.bytes, self._quota = max(_usable(kept_bytes), entry_bytes), quota
        return True

    def free(self, kept_bytes: int, free_bytes: int) -> None:
        """There are so many bytes of entries, and so many that nobody has: others have made room, perhaps."""
        self.bytes = max(self.bytes, min(self._most_bytes, _usable(kept_bytes + free_bytes)))


def _usable(there_bytes: int) -> int:
    return there_bytes - there_bytes // MARGIN_PARTS
