"""The system calls that the store makes, in one place, so that tests can let each of them fail."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_OLD = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a planted pipe must not block whoever opens it


class Disk:
    """Each method is one call, and raises what it raises."""

    def make_directory(self, path: str) -> None:
        """With mode 0700."""
        os.mkdir(path, 0o700)

    def create(self, path: str) -> int:
        """A new file of mode 0600, open to be written."""
        return os.open(path, _NEW, 0o600)

    def open(self, path: str, *, to_lock: bool = False) -> int:
        """An existing file, never through a link; `to_lock` opens it for writing, as some file systems' locks want it."""
        return os.open(path, _OLD | (os.O_RDWR if to_lock else os.O_RDONLY))

    def lock(self, fd: int) -> None:
        """Held until the file is closed or its process ends. Raises BlockingIOError if another open file holds it."""
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def links(self, fd: int) -> int:
        """Names that the file has."""
        return os.fstat(fd).st_nlink

    def write(self, fd: int, views: Sequence[memoryview], offset: int) -> int:
        return os.pwritev(fd, views, offset)

    def read(self, fd: int, views: Sequence[memoryview], offset: int) -> int:
        return os.preadv(fd, views, offset)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def touch(self, fd: int, used_ns: int) -> None:
        """Set when the file was last used: its modification time, since access times are often not kept."""
        os.utime(fd, ns=(used_ns, used_ns))

    def used_ns(self, path: str) -> int:
        return os.stat(path, follow_symlinks=False).st_mtime_ns

    def free_bytes(self, path: str) -> int:
        """Of the file system that the path is on, for others than its administrator."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def close(self, fd: int) -> None:
        os.close(fd)
