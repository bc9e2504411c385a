"""A process killed in the middle of its writes, again and again, beside one that goes on; several under one cap."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headrace
from headrace.cache.ssd import EntryKey, SsdSettings, SsdStore, TokenChain, chain_root
from headrace.cache.ssd.header import entry_bytes
from headrace.cache.ssd.key import is_name

CHAIN = TokenChain(chain_root(b"model"), 4)
CHAIN.extend(range(64))
SIZES = (3_000_000, 100, 1_500_000)
WRITER = """
import sys
from pathlib import Path
from tests.cache.ssd.test_killed import buffers, key
from headrace.cache.ssd import SsdSettings, SsdStore
store = SsdStore(SsdSettings(Path(sys.argv[1]), 1 << 30, sync=False))
print("ready", flush=True)
while True:
    for number in range(24):
        store.put(key(number), buffers(number)).result()
        store.remove(key(number + 12 if number < 12 else number - 12))
"""


CAPPED = """
import random, sys
from pathlib import Path
from tests.cache.ssd.test_killed import CAP_BYTES, buffers, key
from headrace.cache.ssd import SsdSettings, SsdStore
store = SsdStore(SsdSettings(Path(sys.argv[1]), CAP_BYTES, sync=False, refresh_s=0.05))
draw = random.Random(int(sys.argv[2]))
print("ready", flush=True)
while True:
    number = draw.randrange(24)
    into = [bytearray(len(part)) for part in buffers(number)]
    assert not store.get(key(number), into) or into == buffers(number)
    assert set(store.stats().misses) <= {"absent", "vanished"}, store.stats().misses
    store.put(key(number), buffers(number)).result()
"""


def key(number: int) -> EntryKey:
    return CHAIN.checkpoint(number + 1)


def buffers(number: int) -> list[bytes]:
    return [bytes([number, part, 3]) * (size // 3) for part, size in enumerate(SIZES)]


CAP_BYTES = 5 * entry_bytes(SIZES)


def writer(root: Path, script: str = WRITER, *arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join((str(Path(headrace.__file__).parents[1]), str(Path(__file__).parents[3])))
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", script, str(root), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.timeout(300)
def test_what_a_killed_process_leaves_is_whole_or_nothing(tmp_path: Path) -> None:
    beside = SsdStore(SsdSettings(tmp_path, 1 << 30, refresh_s=0.02))
    hits = left = 0
    for kill in range(8):
        process = writer(tmp_path)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.03 + 0.017 * kill)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        left += len(list((tmp_path / "parts").iterdir()))
        late = SsdStore(SsdSettings(tmp_path, 1 << 30))
        assert list((tmp_path / "parts").iterdir()) == []
        for store in (beside, late):
            for number in range(24):
                into = [bytearray(size // 3 * 3) for size in SIZES]
                if store.get(key(number), into):
                    hits += 1
                    assert into == buffers(number)
            assert set(store.stats().misses) <= {"absent", "vanished"}, "files appear whole"
        late.close()
    assert hits and left, "kills came when something had been written, and while something was"
    assert all(is_name(path.name) for path in tmp_path.rglob("*") if path.is_file())
    beside.close()


def test_a_live_process_keeps_what_it_is_writing(tmp_path: Path) -> None:
    process = writer(tmp_path)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    try:
        for _ in range(10):
            SsdStore(SsdSettings(tmp_path, 1 << 30)).close()
        late = SsdStore(SsdSettings(tmp_path, 1 << 30, refresh_s=0.02))
        seen = 0
        end_s = time.monotonic() + 60
        while seen < 20 and time.monotonic() < end_s:
            seen += sum(late.get(key(number), [bytearray(size // 3 * 3) for size in SIZES]) for number in range(24))
        assert seen >= 20 and process.poll() is None, "its entries still appear"
        late.close()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.timeout(300)
def test_processes_under_one_cap_take_each_others_entries_and_never_a_wrong_byte(tmp_path: Path) -> None:
    """Each evicts for its own writes what the other has, while the other reads it."""
    processes = [writer(tmp_path, CAPPED, str(seed)) for seed in range(2)]
    store = SsdStore(SsdSettings(tmp_path, CAP_BYTES, refresh_s=0.02))
    hits = most = 0
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        end_s = time.monotonic() + 60
        while hits < 60 and time.monotonic() < end_s:
            for number in range(24):
                into = [bytearray(len(part)) for part in buffers(number)]
                if store.get(key(number), into):
                    hits += 1
                    assert into == buffers(number)
            most = max(most, sum(size_of(path) for path in (tmp_path / "entries").rglob("*")))
        assert hits >= 60 and set(store.stats().misses) <= {"absent", "vanished"}
        assert [process.poll() for process in processes] == [None, None], "neither met a wrong byte"
        assert CAP_BYTES // 2 < most <= 2 * CAP_BYTES, "no more than what both write before they look again"
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        store.close()


def size_of(path: Path) -> int:
    """Of a file that may go meanwhile."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0
