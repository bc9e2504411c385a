"""What sequences own of the cache: pages of every group and a slot each, within the layout's counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.cache.layout import CacheLayout
from headrace.cache.pages import PagePool
from headrace.cache.slots import SlotPool
from headrace.types import PageUpdate

GONE = -1
"""Stands in a page list for a page that fell behind its group's window."""


@dataclass(slots=True)
class Holding:
    """What one sequence owns. pages[g][i] holds tokens i * page_tokens ... of group g (or is GONE)."""

    slot: int
    pages: list[list[int]]
    first_kept: list[int] = field(default_factory=list)  # per group, the first page that is not GONE


class CacheAllocator:
    """Gives and takes back. Nothing is ever given in part: a request for more than there is changes nothing."""

    def __init__(self, layout: CacheLayout) -> None:
        self.layout = layout
        self.pools = tuple(PagePool(count) for count in layout.pages)
        self.slots = SlotPool(layout.slots)
        self._windows = tuple(g.index for g in layout.groups if g.window is not None)

    def open(self) -> Holding:
        """A slot without pages. The caller has checked `slots.free`."""
        groups = len(self.pools)
        return Holding(self.slots.allocate(), [[] for _ in range(groups)], [0] * groups)

    def close(self, holding: Holding) -> None:
        """Take back everything."""
        for pool, pages, kept in zip(self.pools, holding.pages, holding.first_kept, strict=True):
            pool.release(pages[kept:])
        self.slots.release(holding.slot)

    def extend(self, holding: Holding, tokens: int, reserve_tokens: int = 0) -> tuple[PageUpdate, ...] | None:
        """Make room for the sequence's first `tokens` tokens; None, and nothing changed, when pages are short.

        Full-context groups get room for `reserve_tokens` at once where that is more: a prompt's pages are taken together,
        so that two half-computed prompts cannot starve each other. Window groups free pages as they go and need no reserve.
        """
        wanted = self._pages_wanted(tokens, reserve_tokens)
        if all(len(pages) >= want for pages, want in zip(holding.pages, wanted, strict=True)):
            return ()
        if self._short(holding, wanted):
            return None
        updates = []
        for group, (pool, pages, want) in enumerate(zip(self.pools, holding.pages, wanted, strict=True)):
            first = len(pages)
            if want > first:
                pages.extend(pool.allocate(want - first))
                updates.append(PageUpdate(group, first, tuple(pages[first:])))
        return tuple(updates)

    def has_room(self, tokens: int, reserve_tokens: int, headroom_pages: int) -> bool:
        """Whether a new sequence could take that much and leave `headroom_pages` free in every group."""
        wanted = self._pages_wanted(tokens, reserve_tokens)
        return all(pool.free >= want + headroom_pages for pool, want in zip(self.pools, wanted, strict=True))

    def _pages_wanted(self, tokens: int, reserve_tokens: int) -> list[int]:
        page = self.layout.page_tokens
        reserve = max(tokens, reserve_tokens)
        return [-(-(tokens if group.window is not None else reserve) // page) for group in self.layout.groups]

    def _short(self, holding: Holding, wanted: list[int]) -> bool:
        owned = zip(self.pools, holding.pages, wanted, strict=True)
        return any(want - len(pages) > pool.free for pool, pages, want in owned)

    def drop_behind_windows(self, holding: Holding, position: int) -> None:
        """Free pages of window groups that no query at `position` or later can reach."""
        for group in self._windows:
            window = self.layout.groups[group].window
            assert window is not None
            keep_from = max(0, position - window + 1) // self.layout.page_tokens
            first, pages = holding.first_kept[group], holding.pages[group]
            last = min(keep_from, len(pages))
            if last > first:
                self.pools[group].release(pages[first:last])
                pages[first:last] = [GONE] * (last - first)
                holding.first_kept[group] = last

    @property
    def pages_used(self) -> int:
        return sum(pool.total - pool.free for pool in self.pools)

    @property
    def pages_total(self) -> int:
        return sum(pool.total for pool in self.pools)
