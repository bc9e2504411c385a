"""An SSD in plain Python behind the fake device's host memory: it is slow, loses entries, and reads only parts of others."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from tests.support.fake_device import FakeDevice

from headrace.cache.ssd import EntryKey, Kind, SsdStats
from headrace.cache.ssd.host_entry import HostEntry


class FakeSsd:
    """See `SsdCopies`. Files outlive a device: `device` may be replaced. Nothing is done before `tick`, and then only what does
    not wait for a plan that the device has yet to run.
    """

    def __init__(self, device: FakeDevice, rng: random.Random, faults: float) -> None:
        self.device, self.faults = device, faults
        self.files: dict[EntryKey, Any] = {}
        self.planned = 0  # plans that were made
        self.now_s = 0.0
        self.reads = self.failed = 0
        self._rng = rng
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def contains(self, key: EntryKey) -> bool:
        return key in self.files

    def following(self, digest: bytes, kind: Kind) -> list[EntryKey]:
        return [key for key in self.files if key.kind is kind and key.base == digest[: len(key.base)]]

    def write(self, entries: Sequence[HostEntry]) -> Future[int]:
        return self._later(lambda: sum(self._write(entry) for entry in entries))

    def read(self, entries: Sequence[HostEntry]) -> Future[int]:
        return self._later(lambda: self._read(entries))

    def _later(self, work: Callable[[], int]) -> Future[int]:
        future: Future[int] = Future()
        self._waiting.append((self.planned, lambda: future.set_result(work())))
        return future

    def tick(self, run: int) -> None:
        """Some of what waits, in order; run: plans that the device has run."""
        self.now_s += self._rng.choice((0.1, 0.1, 0.1, 20.0 * (self.faults > 0)))
        while self._waiting and self._waiting[0][0] <= run and self._rng.random() < 0.5:
            self._waiting.pop(0)[1]()

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def _write(self, entry: HostEntry) -> bool:
        if self._rng.random() < self.faults:
            return False
        self.files[entry.key] = self._content(entry)
        return True

    def _content(self, entry: HostEntry) -> Any:
        self.device.save()
        cells = [[[self.device.host_cells[group].get((page, offset)) for offset in range(self.device.layout.page_tokens)]
                  for page in run] for group, run in enumerate(entry.pages)]
        return cells, None if entry.state is None else self.device.host_kept.get(entry.state)

    def _read(self, entries: Sequence[HostEntry]) -> int:
        self.device.land()
        for count, entry in enumerate(entries):
            found = self.files.get(entry.key)
            if found is None or self._rng.random() < self.faults:
                self.failed += 1
                self._fill(entry, ([[[("damaged", [])] * self.device.layout.page_tokens for _ in run] for run in entry.pages],
                                   ("damaged", [])))
                self.files.pop(entry.key, None)
                return count
            self._fill(entry, found)
        self.reads += 1
        return len(entries)

    def _fill(self, entry: HostEntry, content: Any) -> None:
        cells, state = content
        for group, run in enumerate(entry.pages):
            assert len(run) == len(cells[group]), "an entry of another size"
            for page, kept in zip(run, cells[group], strict=True):
                for offset, cell in enumerate(kept):
                    self.device.host_cells[group].pop((page, offset), None)
                    if cell is not None:
                        self.device.host_cells[group][page, offset] = cell
        if entry.state is not None:
            self.device.host_kept[entry.state] = state

    def stats(self) -> SsdStats:
        return SsdStats(len(self.files), 0, 0, 0, {}, 0, {}, 0, 0, 0, 0.0, 0.0)

    def close(self) -> None:
        while self._waiting:
            self._waiting.pop(0)[1]()
