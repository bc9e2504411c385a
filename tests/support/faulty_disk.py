"""A disk whose next steps can be told to fail, or that dies as a killed process does: nothing is cleaned up any more."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress

from headrace.cache.ssd.disk import Disk

WRITING = ("create", "lock", "links", "write", "sync", "rename")
"""Steps of writing an entry, in order (`write` comes more than once)."""


class FaultyDisk(Disk):
    """`steps` counts calls by name. After `fail`, the call of that name that comes `skip` calls later raises."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        self.dead = False
        self._faults: dict[str, tuple[int, int, bool]] = {}  # step -> calls until then, errno, whether the process dies
        self._open: set[int] = set()

    def fail(self, step: str, number: int, *, skip: int = 0, kills: bool = False) -> None:
        self._faults[step] = (skip, number, kills)

    def heal(self) -> None:
        self._faults.clear()

    def end_process(self) -> None:
        """What the kernel does when a process has ended: its files are closed, and its locks gone."""
        self.dead = True
        for fd in self._open:
            with suppress(OSError):
                os.close(fd)
        self._open.clear()

    def _step(self, name: str) -> None:
        if self.dead:
            raise OSError(errno.EIO, "the process is dead")
        self.steps[name] = self.steps.get(name, 0) + 1
        if name in self._faults:
            skip, number, kills = self._faults.pop(name)
            if skip:
                self._faults[name] = (skip - 1, number, kills)
                return
            self.dead = kills
            raise OSError(number, os.strerror(number))

    def create(self, path: str) -> int:
        self._step("create")
        fd = super().create(path)
        self._open.add(fd)
        return fd

    def open(self, path: str, *, to_lock: bool = False) -> int:
        self._step("open")
        fd = super().open(path, to_lock=to_lock)
        self._open.add(fd)
        return fd

    def lock(self, fd: int) -> None:
        self._step("lock")
        super().lock(fd)

    def links(self, fd: int) -> int:
        self._step("links")
        return super().links(fd)

    def write(self, fd: int, views: Sequence[memoryview], offset: int) -> int:
        """What fails has written a part first."""
        try:
            self._step("write")
        except OSError:
            os.pwrite(fd, views[0][: len(views[0]) // 2], offset)
            raise
        # A short write now and then is normal, and no failure.
        return super().write(fd, views[:1] if self.steps["write"] % 3 == 0 else views, offset)

    def read(self, fd: int, views: Sequence[memoryview], offset: int) -> int:
        self._step("read")
        first = views[0]
        if self.steps["read"] % 3 == 0 and len(first) > 1:
            return super().read(fd, [first[: len(first) // 2]], offset)
        return super().read(fd, views, offset)

    def sync(self, fd: int) -> None:
        self._step("sync")

    def rename(self, source: str, target: str) -> None:
        self._step("rename")
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._step("unlink")
        super().unlink(path)

    def touch(self, fd: int, used_ns: int) -> None:
        self._step("touch")
        super().touch(fd, used_ns)

    def used_ns(self, path: str) -> int:
        self._step("used_ns")
        return super().used_ns(path)

    def close(self, fd: int) -> None:
        """A dead process closes nothing itself."""
        if not self.dead:
            self._open.discard(fd)
            super().close(fd)
