"""An entry of the SSD tier as it lies in host memory, and who copies it: the runner, as the scheduler decides."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from headrace.cache.ssd.counters import SsdStats
from headrace.cache.ssd.key import EntryKey, Kind


@dataclass(frozen=True, slots=True)
class HostEntry:
    """key: what is kept. pages[g]: host pages of group g with it; state: the host checkpoint with it, None for pages alone."""

    key: EntryKey
    pages: tuple[tuple[int, ...], ...]
    state: int | None = None


class SsdCopies(Protocol):
    """Copies between host memory and the SSD, by threads of their own: no method waits for the disk but `close`."""

    def contains(self, key: EntryKey) -> bool:
        """Whether the entry was there when last looked."""
        ...

    def following(self, digest: bytes, kind: Kind) -> list[EntryKey]:
        """Entries of that kind that may begin at the page boundary with that chain digest."""
        ...

    def write(self, entries: Sequence[HostEntry]) -> Future[int]:
        """Keep them; with how many that has worked. Until the future is done their memory may not change; it may still be on
        its way there from the device, by a plan that was launched.
        """
        ...

    def read(self, entries: Sequence[HostEntry]) -> Future[int]:
        """Fill their memory, which nobody else has until the future is done: with how many of them, from the first."""
        ...

    def stats(self) -> SsdStats: ...

    def close(self) -> None:
        """Write what waits, for so long as the store allows."""
        ...
