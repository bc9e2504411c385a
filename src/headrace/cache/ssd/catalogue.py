"""Which entries there are, as far as this process knows: names, bytes, when last used. In memory, for any thread."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from threading import Lock

from headrace.cache.ssd.directory import SHARDS
from headrace.cache.ssd.key import Kind, base_of, shard_of

_STALE_FACTOR = 2
_STALE_MIN = 1024


class Catalogue:
    """By file name. `total_bytes` is the sum over all entries."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._lock = Lock()
        self._shards: list[dict[str, tuple[int, int]]] = [{} for _ in range(SHARDS)]
        self._by_base: dict[str, set[str]] = {}  # by kind and base
        self._by_use: list[tuple[int, str]] = []  # a heap; items whose time is no longer their entry's are stale
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, name: str) -> bool:
        return name in self._shards[shard_of(name)]

    def with_base(self, base: str, kind: Kind) -> list[str]:
        """Names of entries of the kind whose base (in hexadecimal) that is."""
        with self._lock:
            return sorted(self._by_base.get(kind.value + base, ()))

    def add(self, name: str, nbytes: int, used_ns: int) -> None:
        """An entry that is there now; it may have been before."""
        with self._lock:
            self._drop(name)
            self._add(shard_of(name), name, nbytes, used_ns)

    def drop(self, name: str) -> None:
        """An entry that is not there any more, if it ever was."""
        with self._lock:
            self._drop(name)

    def touch(self, name: str, used_ns: int) -> None:
        """An entry was used, if it is there."""
        with self._lock:
            self._touch(name, used_ns)

    def replace(self, shard: int, found: Mapping[str, tuple[int, int]]) -> None:
        """What one shard holds, as a scan has just found it: name -> (bytes, when last used)."""
        with self._lock:
            for name in self._shards[shard].keys() - found.keys():
                self._drop(name)
            for name, (nbytes, used_ns) in found.items():
                if name in self._shards[shard]:
                    self._touch(name, used_ns)
                else:
                    self._add(shard, name, nbytes, used_ns)

    def oldest(self) -> tuple[str, int] | None:
        """The name of the entry that was not used for longest, and when it was."""
        with self._lock:
            while self._by_use:
                used_ns, name = self._by_use[0]
                if self._used_ns(name) == used_ns:
                    return name, used_ns
                heapq.heappop(self._by_use)
            return None

    def _used_ns(self, name: str) -> int | None:
        entry = self._shards[shard_of(name)].get(name)
        return entry[1] if entry else None

    def _add(self, shard: int, name: str, nbytes: int, used_ns: int) -> None:
        self._shards[shard][name] = (nbytes, used_ns)
        self._by_base.setdefault(name[0] + base_of(name), set()).add(name)
        self.total_bytes += nbytes
        self._count += 1
        self._push(name, used_ns)

    def _drop(self, name: str) -> None:
        entry = self._shards[shard_of(name)].pop(name, None)
        if entry is None:
            return
        base = name[0] + base_of(name)
        self._by_base[base].remove(name)
        if not self._by_base[base]:
            del self._by_base[base]
        self.total_bytes -= entry[0]
        self._count -= 1

    def _touch(self, name: str, used_ns: int) -> None:
        entry = self._shards[shard_of(name)].get(name)
        if entry and used_ns > entry[1]:
            self._shards[shard_of(name)][name] = (entry[0], used_ns)
            self._push(name, used_ns)

    def _push(self, name: str, used_ns: int) -> None:
        heapq.heappush(self._by_use, (used_ns, name))
        if len(self._by_use) > _STALE_FACTOR * self._count + _STALE_MIN:
            self._by_use = [(entry[1], name) for shard in self._shards for name, entry in shard.items()]
            heapq.heapify(self._by_use)
