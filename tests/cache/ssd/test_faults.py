"""Two stores on one directory, with everything that can go wrong: a get gives what was put under its key, or is a miss."""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.faulty_disk import WRITING, FaultyDisk

from headrace.cache.ssd import EntryKey, SsdSettings, SsdStore, TokenChain, chain_root
from headrace.cache.ssd.directory import CacheDirectory
from headrace.cache.ssd.disk import Disk
from headrace.cache.ssd.header import entry_bytes
from headrace.cache.ssd.key import is_name

SIZES = ((5000,), (5000,), (1, 0, 9000), (), (3,) * 700, (5000,))
CHAIN = TokenChain(chain_root(b"model"), 4)
CHAIN.extend(range(100))
KEYS = (CHAIN.pages(0, 4), CHAIN.pages(0, 8), CHAIN.pages(4, 11), CHAIN.checkpoint(8), CHAIN.checkpoint(7), CHAIN.checkpoint(9))
CAP_BYTES = 42_000
LIMIT_S = 30.0
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EDQUOT, errno.ENOENT)
ALL_STEPS = (*WRITING, "open", "read", "unlink", "touch", "used_ns")
stores = st.sampled_from((0, 1))
entries = st.integers(0, len(KEYS) - 1)


def content(index: int, version: int) -> list[bytes]:
    draw = random.Random(1000 * index + version)
    return [draw.randbytes(size) for size in SIZES[index]]


def everything(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if not path.is_dir())


class StoresMachine(RuleBasedStateMachine):
    """Every step is waited for, so that failures replay."""

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.now_s = 0.0
        self.written: dict[int, set[int]] = {index: set() for index in range(len(KEYS))}
        self.foreign: set[Path] = set()
        self.disks = [FaultyDisk(), FaultyDisk()]
        self.stores = [self.opened(disk) for disk in self.disks]
        self.found_bytes = [0, 0]

    def opened(self, disk: FaultyDisk) -> SsdStore:
        # A refresh comes with every put: all entries are more than a 16th of the cap.
        return SsdStore(SsdSettings(self.root, CAP_BYTES, pause_s=10, refresh_s=1000, read_threads=1), disk, lambda: self.now_s)

    @rule(which=stores, index=entries, version=st.integers(0, 3))
    def put(self, which: int, index: int, version: int) -> None:
        self.written[index].add(version)
        store = self.stores[which]
        stored = store.stats().stored
        store.put(KEYS[index], content(index, version)).result(LIMIT_S)
        assert store.flush(LIMIT_S)
        if store.stats().stored > stored:
            self.found_bytes[which] = 0

    @rule(which=stores, index=entries)
    def get(self, which: int, index: int) -> None:
        self.got(self.stores[which], index)

    def got(self, store: SsdStore, index: int) -> bool:
        into = [bytearray(b"\xaa" * size) for size in SIZES[index]]
        hit = store.get(KEYS[index], into)
        assert not hit or into in [content(index, version) for version in self.written[index]]
        return hit

    @rule(which=stores, index=entries)
    def remove(self, which: int, index: int) -> None:
        self.stores[which].remove(KEYS[index])
        assert self.stores[which].flush(LIMIT_S)

    @rule(
        which=stores, step=st.sampled_from(ALL_STEPS), number=st.sampled_from(ERRORS), skip=st.integers(0, 3),
        kills=st.booleans(),
    )
    def fault(self, which: int, step: str, number: int, skip: int, kills: bool) -> None:
        self.disks[which].fail(step, number, skip=skip, kills=kills)

    @rule(seconds=st.sampled_from((1, 11)))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds

    @rule(which=stores, clean=st.booleans())
    def restart(self, which: int, clean: bool) -> None:
        if clean:
            self.stores[which].close(LIMIT_S)
        self.disks[which].end_process()
        self.stores[which].close(LIMIT_S)
        self.disks[which] = FaultyDisk()
        self.stores[which] = self.opened(self.disks[which])
        self.found_bytes[which] = self.stores[which].total_bytes

    @rule(data=st.data(), way=st.sampled_from(("truncate", "extend", "flip", "exchange", "foreign", "link", "old", "delete")))
    def damage(self, data: st.DataObject, way: str) -> None:
        files = [path for path in everything(self.root) if is_name(path.name) and not path.is_symlink()]
        if not files:
            return
        path = data.draw(st.sampled_from(files))
        size = path.stat().st_size
        at = data.draw(st.integers(0, max(0, size - 1)))
        if way == "truncate":
            os.truncate(path, at)
        elif way == "extend":
            os.truncate(path, size + 1 + at)
        elif way == "flip" and size > 0:
            raw = bytearray(path.read_bytes())
            raw[at] ^= 1 << data.draw(st.integers(0, 7))
            path.write_bytes(raw)
        elif way == "exchange":  # a whole and intact entry under another's name
            other = data.draw(st.sampled_from(KEYS)).name
            target = self.root / "entries" / other[37:39] / other
            target.unlink(missing_ok=True) if target != path else None
            os.rename(path, target)
        elif way == "foreign":
            path.write_bytes(b"not an entry at all" * (at % 900))
        elif way == "link":
            path.unlink()
            path.symlink_to("/dev/zero")
        elif way == "old":
            os.utime(path, (1, 1), follow_symlinks=False)
        elif way == "delete":
            path.unlink()

    @rule(where=st.sampled_from(("", "entries", "entries/00", "parts")), name=st.sampled_from(("notes.txt", "p-1", "x.part")))
    def visit(self, where: str, name: str) -> None:
        if (self.root / where).is_dir():
            (self.root / where / name).write_text("somebody else's")
            self.foreign.add(self.root / where / name)

    @rule(what=st.sampled_from(("entries", "parts", "")))
    def clear(self, what: str) -> None:
        shutil.rmtree(self.root / what, ignore_errors=True)
        self.foreign = {path for path in self.foreign if path.exists()}

    @invariant()
    def within_the_cap(self) -> None:
        """What a store finds when it starts may be more, since damage makes files longer: until it has written an entry."""
        for store, found in zip(getattr(self, "stores", ()), getattr(self, "found_bytes", ()), strict=True):
            assert 0 <= store.total_bytes <= max(CAP_BYTES, found)

    @invariant()
    def foreign_files_stay(self) -> None:
        assert all(path.exists() for path in getattr(self, "foreign", ()))

    def teardown(self) -> None:
        """Whatever happened, a store that starts now works, and has left nothing half-written behind."""
        if not hasattr(self, "root"):
            return
        try:
            for store, disk in zip(self.stores, self.disks, strict=True):
                disk.end_process()
                store.close(LIMIT_S)
            store = self.opened(FaultyDisk())
            assert [path for path in everything(self.root / "parts") if path not in self.foreign] == []
            for index in range(len(KEYS)):
                self.got(store, index)
                self.written[index].add(9)
                assert store.put(KEYS[index], content(index, 9)).result(LIMIT_S)
                assert self.got(store, index)
            self.foreign_files_stay()
            store.close(LIMIT_S)
        finally:
            shutil.rmtree(self.root, ignore_errors=True)


SLOW = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.mark.timeout(600)
class TestStores(StoresMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=20, stateful_step_count=30, derandomize=True, **SLOW)  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.timeout(3600)
class TestStoresLong(StoresMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=500, stateful_step_count=60, **SLOW)  # type: ignore[arg-type]


@pytest.mark.parametrize("machine, limit_s", ((TestStores, 600), (TestStoresLong, 3600)))
def test_a_run_of_the_machine_has_its_own_time_alone(machine: type, limit_s: int) -> None:
    """A mark of a class that both derive from would count before theirs."""
    marks = [mark for each in machine.__mro__ for mark in each.__dict__.get("pytestmark", ())]
    assert [mark.args for mark in marks if mark.name == "timeout"] == [(limit_s,)]


def one_store(root: Path, disk: FaultyDisk, clock: list[float]) -> SsdStore:
    return SsdStore(SsdSettings(root, CAP_BYTES, pause_s=10, read_threads=1), disk, lambda: clock[0])


def file_of(root: Path, key: EntryKey) -> Path:
    return root / "entries" / key.name[37:39] / key.name


@pytest.mark.parametrize("skip", (0, 1))
@pytest.mark.parametrize("step", WRITING)
def test_a_step_that_fails_costs_its_entry_alone(tmp_path: Path, step: str, skip: int) -> None:
    clock, disk = [0.0], FaultyDisk()
    store = one_store(tmp_path, disk, clock)
    assert store.put(KEYS[0], content(0, 0)).result(LIMIT_S)
    skip = min(skip, 1 if step == "write" else 0)  # an entry's only step, but for writing data and then the header
    disk.fail(step, errno.EIO, skip=skip)
    assert not store.put(KEYS[1], content(1, 0)).result(LIMIT_S)
    assert not store.contains(KEYS[1]) and not file_of(tmp_path, KEYS[1]).exists()
    assert everything(tmp_path / "parts") == []
    assert store.get(KEYS[0], [bytearray(5000)])
    clock[0] = 11.0
    assert store.put(KEYS[1], content(1, 0)).result(LIMIT_S) and store.stats().dropped == {"write_error": 1}
    store.close()


@pytest.mark.parametrize("step", WRITING)
def test_a_process_that_dies_at_a_step_leaves_no_entry(tmp_path: Path, step: str) -> None:
    disk = FaultyDisk()
    store = one_store(tmp_path, disk, [0.0])
    disk.fail(step, errno.EIO, kills=True)
    assert not store.put(KEYS[0], content(0, 0)).result(LIMIT_S)
    left = everything(tmp_path)
    assert not any(is_name(path.name) for path in left) and len(left) == (step != "create")
    neighbour = one_store(tmp_path, FaultyDisk(), [0.0])
    assert everything(tmp_path) == (left if step not in ("create", "lock") else []), "the lock is still held"
    disk.end_process()
    late = one_store(tmp_path, FaultyDisk(), [0.0])
    assert everything(tmp_path) == [] and not late.contains(KEYS[0])
    for each in (store, neighbour, late):
        each.close()


def test_a_full_disk_is_one_line_and_a_pause(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "headrace")
    clock, disk = [0.0], FaultyDisk()
    store = one_store(tmp_path, disk, clock)
    for failure in range(3):
        disk.fail("write", errno.ENOSPC)
        assert not store.put(KEYS[0], content(0, 0)).result(LIMIT_S)
        tries = disk.steps["create"]
        assert not store.put(KEYS[1], content(1, 0)).result(LIMIT_S)
        assert disk.steps["create"] == tries, "nothing is tried while it rests"
        clock[0] = 11.0 * (failure + 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left" in caplog.text and str(tmp_path) in caplog.text
    assert store.stats().dropped == {"write_error": 3, "paused": 3}
    assert store.put(KEYS[0], content(0, 0)).result(LIMIT_S)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    store.close()


def test_a_full_disk_at_start_is_no_reason_not_to_start(tmp_path: Path) -> None:
    first = one_store(tmp_path, FaultyDisk(), [0.0])
    assert first.put(KEYS[0], content(0, 0)).result(LIMIT_S)
    first.close()
    disk = FaultyDisk()
    disk.fail("create", errno.ENOSPC)
    store = one_store(tmp_path, disk, [0.0])
    assert store.get(KEYS[0], [bytearray(5000)])
    store.close()


def test_files_that_have_grown_count_as_they_are_and_give_way(tmp_path: Path) -> None:
    first = one_store(tmp_path, FaultyDisk(), [0.0])
    assert first.put(KEYS[0], content(0, 0)).result(LIMIT_S) and first.put(KEYS[1], content(1, 0)).result(LIMIT_S)
    first.close()
    os.truncate(file_of(tmp_path, KEYS[0]), 2 * CAP_BYTES)
    os.utime(file_of(tmp_path, KEYS[0]), (1, 1))
    store = one_store(tmp_path, FaultyDisk(), [0.0])
    assert store.total_bytes == 2 * CAP_BYTES + entry_bytes(SIZES[1])
    assert store.put(KEYS[2], content(2, 0)).result(LIMIT_S)
    assert [store.contains(key) for key in KEYS[:3]] == [False, True, True] and not file_of(tmp_path, KEYS[0]).exists()
    assert store.total_bytes == entry_bytes(SIZES[1]) + entry_bytes(SIZES[2])
    store.close()


@pytest.mark.parametrize("what", ("", "entries", "parts", "entries/" + KEYS[0].name[37:39]))
def test_a_directory_that_was_cleared_is_made_again_at_once(tmp_path: Path, what: str) -> None:
    store = one_store(tmp_path / "cache", FaultyDisk(), [0.0])
    shutil.rmtree(tmp_path / "cache" / what)
    assert store.put(KEYS[0], content(0, 0)).result(LIMIT_S) and store.get(KEYS[0], [bytearray(5000)])
    store.close()


class CleanedDisk(FaultyDisk):
    """Another server cleans up between a file's creation and its lock; `holds` lets it be in the middle of that."""

    def __init__(self, root: Path, holds: bool) -> None:
        super().__init__()
        self.root, self.holds, self.cleaned = root, holds, 0

    def lock(self, fd: int) -> None:
        if self.cleaned == 2:
            return super().lock(fd)
        self.cleaned += 1
        if not self.holds:
            assert CacheDirectory(self.root, Disk()).remove_dead_parts() == 1
            return super().lock(fd)
        [path] = everything(self.root / "parts")
        other = os.open(path, os.O_RDWR)
        Disk().lock(other)
        try:
            super().lock(fd)
        finally:
            path.unlink()
            os.close(other)


@pytest.mark.parametrize("holds", (False, True))
def test_a_file_that_is_cleaned_away_before_its_lock_is_made_again(tmp_path: Path, holds: bool) -> None:
    one_store(tmp_path, FaultyDisk(), [0.0]).close()
    disk = CleanedDisk(tmp_path, holds)
    fd, path = CacheDirectory(tmp_path, disk).create_part()
    assert disk.cleaned == 2 and everything(tmp_path / "parts") == [Path(path)]
    assert CacheDirectory(tmp_path, Disk()).remove_dead_parts() == 0
    disk.close(fd)
    assert CacheDirectory(tmp_path, Disk()).remove_dead_parts() == 1
