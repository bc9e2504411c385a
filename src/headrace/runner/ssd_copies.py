"""Host memory to the SSD tier's store and back, in threads of their own."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeVar

from headrace.cache.ssd import EntryKey, Kind, SsdStats, SsdStore
from headrace.cache.ssd.host_entry import HostEntry
from headrace.cache.ssd.key import BASE_BYTES
from headrace.cache.ssd.queue import Job, JobQueue
from headrace.runner.host_pools import Cells, HostPools

T = TypeVar("T")
_UNLIMITED = sys.maxsize
"""Whoever asks holds the memory of what waits, and so bounds it."""
_CLOSE_S = 10.0


class SsdCopies:
    """See `cache.ssd.host_entry.SsdCopies`. One thread reads, another one writes an entry after the other: threads that a disk
    which hangs does not keep the process from ending.

    drafter: of all that a drafter's part of pages and states depends on, None if they have none. That part is an entry of its
    own, so that engines with and without the drafter share the rest; where there is none, the part is zeros, of which the
    drafter makes what it would of a new sequence.
    """

    def __init__(self, pools: HostPools, store: SsdStore, drafter: bytes | None = None) -> None:
        self._pools, self._store, self._drafter = pools, store, drafter
        self._own = _Cells(pools.page_cells(drafter=False), pools.state_cells(drafter=False))
        self._drafters = _Cells(pools.page_cells(drafter=True), pools.state_cells(drafter=True))
        self._cold = 0  # entries without the drafter's part
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
        return sum(self._put(entry) for entry in entries)

    def _put(self, entry: HostEntry) -> bool:
        kept = self._store.put(entry.key, self._own.of(entry)).result()
        if kept and self._drafter is not None and (memory := self._drafters.of(entry)):
            self._store.put(part_key(entry.key, self._drafter), memory).result()
        return kept

    def read(self, entries: Sequence[HostEntry]) -> Future[int]:
        settled = self._pools.settled()
        return _submit(self._reads, lambda: self._read(entries, settled), 0)

    def _read(self, entries: Sequence[HostEntry], settled: Callable[[], None]) -> int:
        settled()
        for count, entry in enumerate(entries):
            if not self._store.get(entry.key, self._own.of(entry)):
                return count
            if self._drafter is not None and (memory := self._drafters.of(entry)):
                self._get_part(part_key(entry.key, self._drafter), memory)
        return len(entries)

    def _get_part(self, key: EntryKey, memory: list[memoryview]) -> None:
        """A drafter's, or zeros."""
        if self._store.contains(key) and self._store.get(key, memory):
            return
        self._cold += 1
        for view in memory:
            view[:] = bytes(len(view))

    def stats(self) -> SsdStats:
        found = self._store.stats()
        return replace(found, misses={**found.misses, "drafter": self._cold}) if self._cold else found

    def close(self) -> None:
        """What waits is written, for some seconds; a disk that takes longer keeps what it has got."""
        ended = [queue.close(_CLOSE_S) for queue in (self._writes, self._reads)]
        if all(ended):
            self._store.close()


@dataclass(frozen=True, slots=True)
class _Cells:
    """Of pages by group, and of states."""

    pages: tuple[tuple[Cells, ...], ...]
    states: tuple[Cells, ...]

    def of(self, entry: HostEntry) -> list[memoryview]:
        """The pages one by one, so that an entry's parts are the same wherever its pages lie; and the state."""
        pages = [cells[page] for group, run in zip(self.pages, entry.pages, strict=True) for cells in group for page in run]
        return pages if entry.state is None else [*pages, *(cells[entry.state] for cells in self.states)]


def part_key(key: EntryKey, part: bytes) -> EntryKey:
    """Of a part of what `key` stands for, which nobody finds who looks for that."""
    base, digest = (hashlib.sha256(part + each).digest() for each in (key.base, key.digest))
    return EntryKey(key.kind, key.start, key.end, base[:BASE_BYTES], digest)


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
