"""A disk that is full before the cap is reached: entries give way to newer ones, and others find a margin free."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.cache.ssd import EntryKey, SsdSettings, SsdStore, TokenChain, chain_root
from headrace.cache.ssd.allowance import MARGIN_PARTS
from headrace.cache.ssd.disk import Disk
from headrace.cache.ssd.header import entry_bytes

CHAIN = TokenChain(chain_root(b"model"), 4)
CHAIN.extend(range(1000))
LIMIT_S = 30.0
SIZE = 5000
ENTRY = entry_bytes([SIZE])


def key(number: int) -> EntryKey:
    return CHAIN.checkpoint(number)


class SmallDisk(Disk):
    """It has room for so many bytes of files below `root`, of which others have some. error: what it says when they are too
    many.
    """

    def __init__(self, root: Path, room: int, error: int = errno.ENOSPC) -> None:
        self.root, self.room, self.error = root, room, error
        self.others = self.failed = 0
        self.sizes: dict[int, int] = {}  # by inode

    @property
    def left(self) -> int:
        return self.room - self.others - sum(self.sizes.values())

    def write(self, fd: int, views: Sequence[memoryview], offset: int) -> int:
        file, end = os.fstat(fd), offset + sum(map(len, views))
        if end - file.st_size > self.left:
            self.failed += 1
            raise OSError(self.error, os.strerror(self.error))
        self.sizes[file.st_ino] = max(file.st_size, end)
        return super().write(fd, views, offset)

    def unlink(self, path: str) -> None:
        self.sizes.pop(os.stat(path).st_ino, None)
        super().unlink(path)

    def free_bytes(self, path: str) -> int:
        """Whatever a quota is, this is of the file system."""
        return self.left if self.error == errno.ENOSPC else 1 << 40


def opened(disk: SmallDisk) -> SsdStore:
    return SsdStore(SsdSettings(disk.root, 64 << 30, refresh_s=1000, read_threads=1, sync=False), disk)


def put(store: SsdStore, number: int) -> bool:
    return store.put(key(number), [random.Random(number).randbytes(SIZE)]).result(LIMIT_S)


def kept(store: SsdStore, numbers: range) -> list[int]:
    return [number for number in numbers if store.get(key(number), [bytearray(SIZE)])]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_what_was_not_used_for_longest_gives_way(tmp_path: Path, error: int, caplog: pytest.LogCaptureFixture) -> None:
    disk = SmallDisk(tmp_path, 20 * ENTRY, error)
    store = opened(disk)
    for number in range(1, 100):
        assert put(store, number)
        assert store.get(key(1), [bytearray(SIZE)])
        if number > 20:
            assert disk.left >= disk.room // MARGIN_PARTS
    assert disk.failed == 1 and store.stats().dropped == {} and store.stats().evicted == 99 - 18
    assert kept(store, range(1, 100)) == [1, *range(83, 100)]
    assert [record.levelname for record in caplog.records] == ["WARNING"] and str(tmp_path) in caplog.text
    store.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_room_that_others_make_is_used_where_it_can_be_told(tmp_path: Path, error: int) -> None:
    disk = SmallDisk(tmp_path, 40 * ENTRY, error)
    disk.others = 20 * ENTRY
    store = opened(disk)
    assert all(put(store, number) for number in range(1, 25))
    disk.others = 0
    store._refresh()
    assert all(put(store, number) for number in range(25, 80))
    assert len(kept(store, range(1, 80))) == (37 if error == errno.ENOSPC else 18) and disk.failed == 1
    store.close()


def test_room_that_others_take_is_left_to_them(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 40 * ENTRY)
    store = opened(disk)
    for number in range(1, 150):
        disk.others = min(number // 5, 38) * ENTRY
        assert put(store, number), number
    there = kept(store, range(1, 150))
    assert there == list(range(there[0], 150)) and 8 <= len(there) <= 11
    store.close()


def test_two_servers_share_a_full_disk(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 20 * ENTRY)
    one, two = opened(disk), opened(disk)
    for number in range(1, 60):
        assert put(one if number % 2 else two, number)
    for store in (one, two):
        store._refresh()
        there = kept(store, range(1, 60))
        assert there == list(range(there[0], 60)) and 17 <= len(there) <= 19
        store.close()


def test_a_disk_that_others_have_filled_is_rested_from(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 20 * ENTRY)
    disk.others = disk.room
    store = opened(disk)
    assert [put(store, number) for number in (1, 2)] == [False] * 2
    assert store.stats().dropped == {"write_error": 1, "paused": 1} and disk.failed == 1
    store.close()


def test_an_entry_for_which_all_would_have_to_go_leaves_them(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 4 * ENTRY)
    store = opened(disk)
    assert all(put(store, number) for number in range(1, 5))
    assert not store.put(key(9), [bytes(9 * SIZE)]).result(LIMIT_S)
    assert kept(store, range(1, 5)) == [1, 2, 3, 4] and store.stats().evicted == 0
    store.close()
