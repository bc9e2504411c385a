"""Pages that sequences take, and give back."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from headrace.cache.pages import GONE, PagePool
from headrace.cache.prefix.eviction import Eviction
from headrace.cache.prefix.lease import Lease
from headrace.cache.prefix.match import Match, first_read
from headrace.cache.prefix.nodes import Nodes
from headrace.cache.slots import SlotPool
from headrace.types import PageUpdate


class Room:
    """Of the pools, with what eviction can add to them. checkpoint_slots: room for states, which is made ahead of need too."""

    def __init__(self, nodes: Nodes, eviction: Eviction, pools: tuple[PagePool, ...], checkpoint_slots: SlotPool) -> None:
        self._nodes, self._eviction = nodes, eviction
        self._pools, self._checkpoint_slots = pools, checkpoint_slots
        self._windows = any(window is not None for window in nodes.windows)

    def suffices(self, match: Match, tokens: int, reserve_tokens: int, headroom_pages: int) -> bool:
        """See PrefixCache.has_room."""
        shared = match.tokens // self._nodes.page_tokens
        return all(
            self._obtainable(group) - locks >= want - shared + headroom_pages
            for group, (want, locks) in enumerate(zip(self._wanted(tokens, reserve_tokens), match.locks, strict=True))
        )

    def extend(self, lease: Lease, tokens: int, reserve_tokens: int) -> tuple[PageUpdate, ...] | None:
        """See PrefixCache.extend."""
        wanted = self._wanted(tokens, reserve_tokens)
        more = [max(0, want - len(pages)) for want, pages in zip(wanted, lease.pages, strict=True)]
        if any(count and count > self._obtainable(group) for group, count in enumerate(more)):
            return None
        updates = []
        for group, count in enumerate(more):
            if count:
                updates.append(self._take(lease, group, count))
        if not self._windows:
            lease.room = min(map(len, lease.pages), default=sys.maxsize) * self._nodes.page_tokens
        return tuple(updates)

    def _take(self, lease: Lease, group: int, count: int) -> PageUpdate:
        pool, pages = self._pools[group], lease.pages[group]
        if pool.free < count:
            self._eviction.free_pages(group, count)
        taken = pool.allocate(count)
        pages.extend(taken)
        lease.private[group].update(taken)
        return PageUpdate(group, len(pages) - count, tuple(taken))

    def _obtainable(self, group: int) -> int:
        """Pages that are free or can be evicted."""
        return self._pools[group].free + self._nodes.owned[group] - self._nodes.locked[group]

    def _wanted(self, tokens: int, reserve_tokens: int) -> list[int]:
        reserve = max(tokens, reserve_tokens)
        return [-(-(tokens if window is not None else reserve) // self._nodes.page_tokens) for window in self._nodes.windows]

    @property
    def unread(self) -> tuple[int, ...]:
        """See PrefixCache.unread_pages."""
        return tuple(owned - locked for owned, locked in zip(self._nodes.owned, self._nodes.locked, strict=True))

    def make_ahead(self, pages: Sequence[int], slots: int, entries: int) -> int:
        """See PrefixCache.make_room."""
        left = entries
        for group, (pool, wanted) in enumerate(zip(self._pools, pages, strict=True)):
            while left and pool.free < wanted and self._eviction.free_some_pages(group, wanted):
                left -= 1
        while left and self._checkpoint_slots.free < slots and self._eviction.free_another_slot():
            left -= 1
        return entries - left

    def drop_behind_windows(self, lease: Lease, position: int) -> None:
        """See PrefixCache.drop_behind_windows."""
        for group, window in enumerate(self._nodes.windows):
            if window is None:
                continue
            pages, first = lease.pages[group], lease.first_kept[group]
            last = min(first_read(self._nodes, window, position), len(pages))
            if lease.tail is not None:
                last = min(last, lease.tail.first)
            if last > first:
                self._nodes.read_window(group, lease.node, first, last, pages, -1)
                self.release(lease, group, pages[first:last])
                pages[first:last] = [GONE] * (last - first)
                lease.first_kept[group] = last

    def release(self, lease: Lease, group: int, pages: Sequence[int]) -> None:
        """Free those of the pages that the sequence owns."""
        private = lease.private[group]
        owned = [page for page in pages if page in private]
        private.difference_update(owned)
        self._pools[group].release(owned)
