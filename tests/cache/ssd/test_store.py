"""The store on a sound disk: what comes back, what is counted, who gives way, who may read it."""

from __future__ import annotations

import errno
import os
import random
import stat
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.support.faulty_disk import FaultyDisk

from headrace.cache.ssd import EntryKey, Kind, SsdSettings, SsdStore, TokenChain, chain_root
from headrace.cache.ssd.disk import Disk
from headrace.cache.ssd.header import MAX_HEADER_BYTES, Header, entry_bytes, header_bytes
from headrace.cache.ssd.pieces import PIECE_BYTES, piece_count
from headrace.errors import ConfigError

CHAIN = TokenChain(chain_root(b"model"), 4)
CHAIN.extend(range(400))
LIMIT_S = 30.0
SIZE = 1000


def key(number: int) -> EntryKey:
    return CHAIN.checkpoint(number)


def data(number: int, size: int = SIZE) -> bytes:
    return random.Random(number).randbytes(size)


def opened(root: Path, entries: int = 1000, disk: Disk | None = None, **settings: float) -> SsdStore:
    return SsdStore(SsdSettings(root, entries * entry_bytes([SIZE]), **settings), disk)  # type: ignore[arg-type]


def put(store: SsdStore, number: int) -> None:
    assert store.put(key(number), [data(number)]).result(LIMIT_S)


def held(store: SsdStore, number: int) -> bool:
    into = bytearray(SIZE)
    hit = store.get(key(number), [into])
    assert not hit or into == data(number)
    return hit


def path_of(root: Path, number: int) -> Path:
    return next(root.rglob(key(number).name))


@pytest.mark.parametrize("threads", (1, 4))
def test_buffers_of_any_size_and_kind_come_back(tmp_path: Path, threads: int) -> None:
    draw = np.random.default_rng(0)
    sizes = (0, 1, PIECE_BYTES, 9 * PIECE_BYTES + 7, *[33] * 600, 5 * PIECE_BYTES - 1)
    arrays = [draw.integers(0, 256, size, np.uint8) for size in sizes]
    arrays += [draw.standard_normal((3, 5, 7)), np.zeros((0, 4), np.float32)]
    store = SsdStore(SsdSettings(tmp_path, 1 << 30, read_threads=threads))
    assert store.put(CHAIN.pages(0, 9), arrays).result(LIMIT_S)
    store.close()
    late = SsdStore(SsdSettings(tmp_path, 1 << 30, read_threads=threads))
    into = [np.full_like(array, 7) for array in arrays]
    assert late.get(CHAIN.pages(0, 9), into)
    assert all(np.array_equal(one, two) for one, two in zip(arrays, into, strict=True))
    [file] = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert late.total_bytes == file.stat().st_size == entry_bytes([array.nbytes for array in arrays])
    for at in (header_bytes(len(arrays), piece_count([array.nbytes for array in arrays])), -1):  # in the first and last piece
        raw = bytearray(file.read_bytes())
        raw[at] ^= 4
        file.write_bytes(raw)
        assert not late.get(CHAIN.pages(0, 9), into) and not file.exists()
        assert late.put(CHAIN.pages(0, 9), arrays).result(LIMIT_S)
    assert late.stats().misses == {"corrupt": 2}
    late.close()


def test_files_and_directories_are_their_owners_alone(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        (tmp_path / "mine").mkdir(0o755)
        (tmp_path / "mine" / "entries").mkdir(0o777)
        for root in (tmp_path / "new" / "deeper", tmp_path / "mine"):
            store = opened(root)
            put(store, 1)
            store.close()
    finally:
        os.umask(previous)
    for root in (tmp_path / "new" / "deeper", tmp_path / "mine"):
        for path in root.rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((tmp_path / "new" / "deeper").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o755, "a directory that was there is its owner's business"


def test_a_directory_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be kept in .*/file: "):
        opened(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"cannot be kept in .*/file/below: Not a directory"):
        opened(tmp_path / "file" / "below")
    (tmp_path / "led away" / "elsewhere").mkdir(parents=True)
    (tmp_path / "led away" / "entries").symlink_to("elsewhere")
    with pytest.raises(ConfigError, match=r"cannot be kept in .*/led away: Not a directory"):
        opened(tmp_path / "led away")
    with pytest.raises(ValueError, match="cap_bytes is 0"):
        SsdSettings(tmp_path, 0)


def test_the_cap_is_kept_and_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    store = opened(tmp_path, entries=4)
    for number in range(4):
        put(store, number)
    assert held(store, 0)
    put(store, 4)
    assert [store.contains(key(number)) for number in range(5)] == [True, False, True, True, True]
    assert store.total_bytes == store.settings.cap_bytes and store.stats().evicted == 1
    assert not store.put(key(9), [bytes(5 * entry_bytes([SIZE]))]).result(LIMIT_S)
    assert store.stats().dropped == {"too_large": 1} and store.stats().entries == 4
    store.close()


def test_use_is_remembered_across_restarts(tmp_path: Path) -> None:
    store = opened(tmp_path, entries=4)
    for number in range(4):
        put(store, number)
    assert held(store, 1) and held(store, 0)
    store.close()
    late = opened(tmp_path, entries=4)
    assert late.total_bytes == late.settings.cap_bytes
    put(late, 4)
    put(late, 5)
    assert [held(late, number) for number in range(6)] == [True, True, False, False, True, True]
    late.close()


def test_use_is_known_while_it_runs_where_files_cannot_be_touched(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = opened(tmp_path, entries=4, disk=disk)
    for number in range(4):
        put(store, number)
    disk.fail("touch", errno.EPERM)
    assert held(store, 0) and disk.steps["touch"] == 1
    put(store, 4)
    assert held(store, 0) and not held(store, 1)
    store.close()


def test_a_smaller_cap_is_reached_with_the_next_entry(tmp_path: Path) -> None:
    store = opened(tmp_path, entries=9)
    for number in range(9):
        put(store, number)
    store.close()
    late = opened(tmp_path, entries=3)
    put(late, 9)
    assert [late.contains(key(number)) for number in range(10)] == [False] * 7 + [True] * 3
    late.close()


def test_two_servers_share_entries_and_spare_what_the_other_uses(tmp_path: Path) -> None:
    one, two = opened(tmp_path, entries=4, refresh_s=0.05), opened(tmp_path, entries=4, refresh_s=0.05)
    for number in range(4):
        put(one, number)
    assert held(two, 0), "found although never heard of"
    wait_until(lambda: two.contains(key(3)) and two.total_bytes == one.total_bytes)
    assert held(two, 1)
    put(one, 4)
    assert not held(two, 2) and held(two, 0) and held(two, 1), "one had not used 0 for longest, but two has since"
    wait_until(lambda: two.contains(key(4)) and not two.contains(key(2)))
    put(two, 5)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 4, "the cap is the directory's"
    one.close()
    two.close()


def wait_until(true: object) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_an_entry_evicted_by_the_other_is_a_miss_and_can_be_put_again(tmp_path: Path) -> None:
    one, two = opened(tmp_path), opened(tmp_path)
    put(one, 1)
    assert held(two, 1)
    two.remove(key(1))
    assert two.flush(LIMIT_S) and one.contains(key(1)) and not held(one, 1) and not one.contains(key(1))
    assert one.stats().misses == {"vanished": 1} and two.stats().misses == {}
    assert not held(two, 1) and two.stats().misses == {"absent": 1}
    put(one, 1)
    assert held(two, 1)
    one.close()
    two.close()


def test_what_follows_a_boundary_is_found_without_knowing_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    keys = [CHAIN.pages(8, 12), CHAIN.pages(8, 16), CHAIN.checkpoint(8), CHAIN.checkpoint(11)]
    others = [CHAIN.pages(4, 8), CHAIN.checkpoint(12), CHAIN.checkpoint(7)]
    for each in (*keys, *others):
        assert store.put(each, [b"x"]).result(LIMIT_S)
    store.close()
    late = opened(tmp_path)
    for kind, found in ((Kind.PAGES, keys[:2]), (Kind.CHECKPOINT, keys[2:])):
        assert set(late.following(CHAIN.digest(8), kind)) == set(found)
    late.remove(keys[0])
    assert late.following(CHAIN.digest(8), Kind.PAGES) == keys[1:2] and late.following(b"?" * 32, Kind.PAGES) == []
    late.close()


DAMAGES = {
    "foreign": lambda raw: b"not ours" + raw[8:],
    "version": lambda raw: raw[:8] + b"\2" + raw[9:],
    "header": lambda raw: raw[:40] + bytes([raw[40] ^ 1]) + raw[41:],
    "corrupt": lambda raw: raw[:-1] + bytes([raw[-1] ^ 128]),
    "truncated": lambda raw: raw[:-1],
    "other_key": lambda raw: Header(key(2), (SIZE,), (0,)).packed() + raw[4096:],
    "shape": lambda raw: Header(key(1), (SIZE - 1,), (0,)).packed() + raw[4096:],
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_a_damaged_file_is_a_miss_with_its_reason_and_goes(
    tmp_path: Path, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    put(store, 1)
    file = path_of(tmp_path, 1)
    file.write_bytes(DAMAGES[reason](file.read_bytes()))
    assert not held(store, 1)
    assert store.stats().misses == {reason: 1} and not file.exists() and not store.contains(key(1))
    [record] = caplog.records
    assert reason in record.getMessage() and file.name in record.getMessage()
    put(store, 1)
    assert held(store, 1)
    store.close()


@pytest.mark.parametrize("length", (0, 1, 8, 100, 4095, 4096, 5000))
def test_a_file_cut_anywhere_is_a_miss(tmp_path: Path, length: int) -> None:
    store = opened(tmp_path)
    put(store, 1)
    os.truncate(path_of(tmp_path, 1), length)
    assert not held(store, 1) and store.stats().misses == {"truncated": 1}
    store.close()


def test_every_flipped_bit_of_a_header_is_a_miss_or_does_no_harm(tmp_path: Path) -> None:
    store = opened(tmp_path, read_threads=1)
    put(store, 1)
    file = path_of(tmp_path, 1)
    raw, misses = file.read_bytes(), 0
    for bit in range(8 * 110):
        file.write_bytes(raw[: bit // 8] + bytes([raw[bit // 8] ^ 1 << bit % 8]) + raw[bit // 8 + 1 :])
        misses += not held(store, 1)
    used = 8 + 4 + 4 + 1 + 8 + 8 + 8 + 32 + 4 + 4 + 8 + 4 + 4  # what follows are zeros up to a whole block
    assert misses == 8 * used
    store.close()


def test_other_things_in_an_entrys_place_are_misses(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in (1, 2, 3):
        put(store, number)
    files = [path_of(tmp_path, number) for number in (1, 2, 3)]
    for file in files:
        file.unlink()
    os.mkfifo(files[0])
    files[1].mkdir()
    files[2].symlink_to(__file__)
    assert not any(held(store, number) for number in (1, 2, 3)) and store.stats().misses == {"foreign": 3}
    assert not files[0].exists() and not files[2].is_symlink() and Path(__file__).exists()
    store.close()


def test_an_entry_is_written_once(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, 1)
    assert store.put(key(1), [data(2)]).result(0) and held(store, 1)
    assert store.stats().stored == 1 and store.stats().written_bytes == entry_bytes([SIZE]) and store.stats().hits == 1
    store.close()


class SlowDisk(Disk):
    """Writes wait until they may go on."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.writes = threading.Event()

    def write(self, fd: int, views: Sequence[memoryview], offset: int) -> int:
        self.writes.set()
        assert self.may_write.wait(LIMIT_S)
        return super().write(fd, views, offset)


def test_a_slow_disk_drops_entries_and_holds_nobody_up(tmp_path: Path) -> None:
    disk = SlowDisk()
    store = opened(tmp_path, disk=disk, queue_bytes=3 * entry_bytes([SIZE]))
    waiting = [store.put(key(number), [data(number)]) for number in range(5)]
    again = store.put(key(0), [data(0)])
    assert [done.done() for done in (*waiting, again)] == [False, False, False, True, True, True]
    assert not waiting[4].result() and again.result(), "on its way already"
    assert store.stats().dropped == {"queue_full": 2} and store.stats().queued_bytes == 3 * entry_bytes([SIZE])
    assert not store.contains(key(0)) and not waiting[1].cancel() and not store.flush(0.01)
    disk.may_write.set()
    assert store.flush(LIMIT_S) and [done.result(0) for done in waiting] == [True, True, True, False, False]
    assert store.stats().queued_bytes == 0 and [held(store, number) for number in range(4)] == [True, True, True, False]
    store.close()


def test_an_entry_larger_than_the_queue_is_taken_alone(tmp_path: Path) -> None:
    disk = SlowDisk()
    store = opened(tmp_path, disk=disk, queue_bytes=1)
    first, second = (store.put(key(number), [data(number)]) for number in (1, 2))
    disk.may_write.set()
    assert first.result(LIMIT_S) and not second.result(0)
    store.close()


def test_closing_gives_up_what_the_disk_does_not_take(tmp_path: Path) -> None:
    disk = SlowDisk()
    store = opened(tmp_path, disk=disk)
    first, second = (store.put(key(number), [data(number)]) for number in (1, 2))
    assert disk.writes.wait(LIMIT_S)
    store.close(0.05)
    assert not second.result(0) and not first.done() and not store.put(key(3), [data(3)]).result(0)
    assert store.stats().dropped == {"closed": 2}
    disk.may_write.set()
    assert first.result(LIMIT_S), "its buffers are not free before"


def test_a_removal_comes_after_what_waits(tmp_path: Path) -> None:
    disk = SlowDisk()
    store = opened(tmp_path, disk=disk)
    store.put(key(1), [data(1)])
    store.remove(key(1))
    store.put(key(2), [data(2)])
    store.remove(key(2))
    store.put(key(2), [data(2)])
    disk.may_write.set()
    assert store.flush(LIMIT_S) and not held(store, 1) and held(store, 2)
    store.close()


def test_buffers_that_cannot_be_are_named(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(ValueError, match="buffer 1 is not contiguous"):
        store.put(key(1), [b"", np.zeros((4, 4))[:, 1]])
    with pytest.raises(ValueError, match="too many for one entry"):
        store.put(key(1), [b""] * (MAX_HEADER_BYTES // 8))
    store.close()
