"""Host memory to the SSD tier's store and back, in threads of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from headrace.cache.ssd import EntryKey, Kind, SsdStats, SsdStore
from headrace.cache.ssd.host_entry import HostEntry
from headrace.cache.ssd.queue import Job, JobQueue
from headrace.runner.host_pools import HostPools

T = TypeVar("T")
_UNLIMITED = sys.maxsize
"""Whoever asks holds the memory of what waits, and so bounds it."""
_CLOSE_S = 10.0


class SsdCopies:
    """See `cache.ssd.host_entry.SsdCopies`. One thread reads, another one writes an entry after the other: threads that a disk
    which hangs does not keep the process from ending.
    """

    def __init__(self, pools: HostPools, store: SsdStore) -> None:
        self._pools, self._store = pools, store
        self._pages, self._states = pools.page_cells(), pools.state_cells()
        self._reads, self._writes = (JobQueue(_UNLIMITED, lambda: None, 3600.0) for _ in range(2))

    def contains(self, key: EntryKey) -> bool:
        return self._store.contains(key)

    def following(self, digest: bytes, kind: Kind) -> list[EntryKey]:
        return self._store.following(digest, kind)

    def write(self, entries: Sequence[HostEntry]) -> Future[int]:
        settled = self._pools.settled()
        return _submit(self._writes, lambda: self._write(entries, settled), 0)

    def _write(self, entries: Sequence[HostEntry], settled: Callable[[], None]) -> int:
        settled()
        return sum(self._store.put(entry.key, self._memory(entry)).result() for entry in entries)

    def read(self, entries: Sequence[HostEntry]) -> Future[int]:
        settled = self._pools.settled()
        return _submit(self._reads, lambda: self._read(entries, settled), 0)

    def _read(self, entries: Sequence[HostEntry], settled: Callable[[], None]) -> int:
        settled()
        for count, entry in enumerate(entries):
            if not self._store.get(entry.key, self._memory(entry)):
                return count
        return len(entries)

    def _memory(self, entry: HostEntry) -> list[memoryview]:
        """The pages one by one, so that an entry's parts are the same wherever its pages lie; and the state."""
        pages = [cells[page] for group, run in zip(self._pages, entry.pages, strict=True) for cells in group for page in run]
        return pages if entry.state is None else [*pages, *(cells[entry.state] for cells in self._states)]

    def stats(self) -> SsdStats:
        return self._store.stats()

    def close(self) -> None:
        """What waits is written, for some seconds; a disk that takes longer keeps what it has got."""
        ended = [queue.close(_CLOSE_S) for queue in (self._writes, self._reads)]
        if all(ended):
            self._store.close()


def _submit(queue: JobQueue, work: Callable[[], T], otherwise: T) -> Future[T]:
    """work's result, or `otherwise` where there is no time left for it."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)
            raise

    if not queue.add(Job(0, run, lambda: done.set_result(otherwise))):
        done.set_result(otherwise)
    return done
