"""Pages: all or nothing, and what falls behind a window comes back. Nothing is kept here of what was computed."""

from __future__ import annotations

import pytest

from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.cache.pages import GONE, PagePool
from headrace.cache.policy.flops_per_byte import FlopsPerByte
from headrace.cache.prefix.cache import PrefixCache
from headrace.cache.prefix.lease import Lease
from headrace.cache.prefix.miss import Miss
from headrace.types import PageUpdate

FULL = CacheGroup(0, None, (0,), 1)
WINDOW = CacheGroup(1, 8, (1,), 1)


def make(*pages: int) -> tuple[PrefixCache, Lease]:
    layout = CacheLayout((FULL, WINDOW)[: len(pages)], 4, pages, 2)
    cache = PrefixCache(layout, FlopsPerByte(1.0, 0.0, 1))
    return cache, cache.open("", b"", 0, unread=Miss.OPTED_OUT, writes=False).lease


def test_extend_gives_whole_pages_once() -> None:
    cache, lease = make(5)
    assert cache.extend(lease, 5) == (PageUpdate(0, 0, (0, 1)),)
    assert cache.extend(lease, 8) == ()
    assert cache.extend(lease, 9) == (PageUpdate(0, 2, (2,)),)
    assert cache.pools[0].free == 2
    cache.close(lease)
    assert cache.pools[0].free == 5


def test_a_shortage_in_one_group_changes_nothing_in_another() -> None:
    cache, lease = make(10, 2)
    assert cache.extend(lease, 12) is None
    assert [pool.free for pool in cache.pools] == [10, 2] and lease.pages == [[], []]


def test_only_full_groups_reserve() -> None:
    cache, lease = make(10, 3)
    nothing = cache.match("", b"", 0)
    assert cache.has_room(nothing, 8, 40, headroom_pages=0) and not cache.has_room(nothing, 8, 40, headroom_pages=1)
    assert cache.extend(lease, 8, reserve_tokens=40) is not None
    assert [len(pages) for pages in lease.pages] == [10, 2]


def test_pages_behind_a_window_come_back() -> None:
    cache, lease = make(10, 4)
    cache.extend(lease, 16)
    cache.drop_behind_windows(lease, 10)  # a query at 10 sees 3 ... 10
    assert lease.pages[1] == [0, 1, 2, 3]
    cache.drop_behind_windows(lease, 11)  # 4 ... 11: the first page is behind
    assert lease.pages[1] == [GONE, 1, 2, 3] and cache.pools[1].free == 1
    assert cache.pools[0].free == 6
    cache.close(lease)
    assert cache.pools[1].free == 4


def test_a_pool_never_gives_more_than_it_has() -> None:
    pool = PagePool(2)
    with pytest.raises(ValueError, match="3 pages wanted, 2 free"):
        pool.allocate(3)
