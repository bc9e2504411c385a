"""What the store counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Literal

from headrace.cache.ssd.header import DamageReason

MissReason = Literal["absent", "vanished", "unreadable"] | DamageReason
"""absent: never heard of. vanished: evicted by another server. Of the others the file is removed (`unreadable`: after EIO)."""
DropReason = Literal["queue_full", "paused", "too_large", "write_error", "closed"]


@dataclass(frozen=True, slots=True)
class SsdStats:
    """Totals since start-up, and what there is now. Seconds are of the disk and checksums: of the writer, of `get` calls."""

    entries: int
    total_bytes: int
    queued_bytes: int
    hits: int
    misses: Mapping[str, int]
    stored: int
    dropped: Mapping[str, int]
    evicted: int
    written_bytes: int
    read_bytes: int
    write_s: float
    read_s: float


class Counters:
    """Running totals, from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._hits = self._stored = self._evicted = self._written_bytes = self._read_bytes = 0
        self._write_s = self._read_s = 0.0
        self._misses: dict[str, int] = {}
        self._dropped: dict[str, int] = {}

    def hit(self, nbytes: int, read_s: float) -> None:
        with self._lock:
            self._hits += 1
            self._read_bytes += nbytes
            self._read_s += read_s

    def miss(self, reason: MissReason) -> None:
        with self._lock:
            self._misses[reason] = self._misses.get(reason, 0) + 1

    def stored(self, nbytes: int, write_s: float) -> None:
        with self._lock:
            self._stored += 1
            self._written_bytes += nbytes
            self._write_s += write_s

    def dropped(self, reason: DropReason) -> None:
        with self._lock:
            self._dropped[reason] = self._dropped.get(reason, 0) + 1

    def evicted(self) -> None:
        with self._lock:
            self._evicted += 1

    def snapshot(self, entries: int, total_bytes: int, queued_bytes: int) -> SsdStats:
        with self._lock:
            return SsdStats(
                entries, total_bytes, queued_bytes, self._hits, dict(self._misses), self._stored, dict(self._dropped),
                self._evicted, self._written_bytes, self._read_bytes, self._write_s, self._read_s,
            )
