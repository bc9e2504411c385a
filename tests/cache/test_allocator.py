"""Pages and slots: all or nothing, and what falls behind a window comes back."""

from __future__ import annotations

import pytest

from headrace.cache.allocator import GONE, CacheAllocator
from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.cache.pages import PagePool
from headrace.types import PageUpdate

FULL = CacheGroup(0, None, (0,), 1)
WINDOW = CacheGroup(1, 8, (1,), 1)


def test_extend_gives_whole_pages_once() -> None:
    cache = CacheAllocator(CacheLayout((FULL,), 4, (5,), 2))
    holding = cache.open()
    assert cache.extend(holding, 5) == (PageUpdate(0, 0, (0, 1)),)
    assert cache.extend(holding, 8) == ()
    assert cache.extend(holding, 9) == (PageUpdate(0, 2, (2,)),)
    assert cache.pages_used == 3
    cache.close(holding)
    assert cache.pages_used == 0 and cache.slots.free == 2


def test_a_shortage_in_one_group_changes_nothing_in_another() -> None:
    cache = CacheAllocator(CacheLayout((FULL, WINDOW), 4, (10, 2), 2))
    holding = cache.open()
    assert cache.extend(holding, 12) is None
    assert cache.pages_used == 0 and holding.pages == [[], []]


def test_only_full_groups_reserve() -> None:
    cache = CacheAllocator(CacheLayout((FULL, WINDOW), 4, (10, 3), 2))
    holding = cache.open()
    assert cache.has_room(8, 40, headroom_pages=0) and not cache.has_room(8, 40, headroom_pages=1)
    assert cache.extend(holding, 8, reserve_tokens=40) is not None
    assert [len(pages) for pages in holding.pages] == [10, 2]


def test_pages_behind_a_window_come_back() -> None:
    cache = CacheAllocator(CacheLayout((FULL, WINDOW), 4, (10, 4), 2))
    holding = cache.open()
    cache.extend(holding, 16)
    cache.drop_behind_windows(holding, 10)  # a query at 10 sees 3 ... 10
    assert holding.pages[1] == [0, 1, 2, 3]
    cache.drop_behind_windows(holding, 11)  # 4 ... 11: the first page is behind
    assert holding.pages[1] == [GONE, 1, 2, 3] and cache.pools[1].free == 1
    assert cache.pools[0].free == 6
    cache.close(holding)
    assert cache.pools[1].free == 4


def test_a_pool_never_gives_more_than_it_has() -> None:
    pool = PagePool(2)
    with pytest.raises(ValueError, match="3 pages wanted, 2 free"):
        pool.allocate(3)
