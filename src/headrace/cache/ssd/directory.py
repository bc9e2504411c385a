"""The directory that servers share: entries in 256 directories by digest, files being written in another.

A file that is being written is locked by whoever writes it, and a lock ends with its process: what can be locked belongs to a
dead one. So process ids, which containers do not share, are not needed.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.cache.ssd.allowance import NO_SPACE
from headrace.cache.ssd.disk import Disk
from headrace.cache.ssd.key import is_name, shard_of
from headrace.errors import ConfigError

SHARDS = 256
_PART = re.compile(r"[0-9a-f]{32}\.part")
_ATTEMPTS = 3
_SETTLED_NS = 2_000_000_000
_UNSETTLED = -1
"""Seen so shortly after a change that another one could leave the time as it is: clocks of file systems have steps."""
_GONE = -2


class CacheDirectory:
    """Paths below `root`, and what is there. Nothing but entries and temporary files, by name, is ever touched."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self.root = root
        self._disk = disk
        self._entries = os.path.join(root, "entries")
        self._parts = os.path.join(root, "parts")
        self._shards = tuple(os.path.join(self._entries, f"{shard:02x}") for shard in range(SHARDS))
        self._seen_ns = [_UNSETTLED] * SHARDS

    def open(self) -> None:
        """Make the directories and find out whether they can be used. Raises ConfigError naming the directory if not.

        A full disk is no error: there may be room later, and entries to read now.
        """
        try:
            self.make()
            fd, path = self.create_part()
            try:
                self._disk.unlink(path)
            finally:
                self._disk.close(fd)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise ConfigError(f"the SSD cache cannot be kept in {self.root}: {error.strerror}") from None

    def make(self) -> None:
        """Make the directories that are missing; entries are for their owner alone, whatever mode an existing one had."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (self._entries, self._parts, *self._shards):
            with suppress(FileExistsError):
                self._disk.make_directory(path)
        for path in (self._entries, self._parts):
            mode = os.lstat(path).st_mode
            if not stat.S_ISDIR(mode):  # nor a link to one: what is below might be somebody else's
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if stat.S_IMODE(mode) != 0o700:
                os.chmod(path, 0o700)

    def path(self, name: str) -> str:
        """Where an entry of that file name is."""
        return os.path.join(self._shards[shard_of(name)], name)

    def create_part(self) -> tuple[int, str]:
        """A new locked file to write an entry to: (descriptor, path). Raises OSError."""
        for _ in range(_ATTEMPTS):
            path = os.path.join(self._parts, f"{secrets.token_hex(16)}.part")
            fd = self._disk.create(path)
            try:
                self._disk.lock(fd)
                if self._disk.links(fd):
                    return fd, path
            except BlockingIOError:
                pass  # another server is cleaning up, and took it for a dead one's before it was locked
            except OSError:
                with suppress(OSError):
                    self._disk.unlink(path)
                self._disk.close(fd)
                raise
            self._disk.close(fd)
        raise BlockingIOError(errno.EWOULDBLOCK, "new files are removed before they can be locked")

    def remove_dead_parts(self) -> int:
        """Remove what processes that no longer live were writing; how many files that were."""
        removed = 0
        for name in self._part_names():
            with suppress(OSError):  # locked: its process lives; gone: another server has removed it, or it was renamed
                path = os.path.join(self._parts, name)
                fd = self._disk.open(path, to_lock=True)
                try:
                    self._disk.lock(fd)
                    self._disk.unlink(path)
                    removed += 1
                finally:
                    self._disk.close(fd)
        return removed

    def _part_names(self) -> list[str]:
        with suppress(OSError):
            return [name for name in os.listdir(self._parts) if _PART.fullmatch(name)]
        return []

    def free_bytes(self) -> int:
        """Of the file system, as far as it says. Raises OSError."""
        return self._disk.free_bytes(self._entries)

    def changed(self) -> list[int]:
        """Shards in which others may have made or removed files since they were scanned."""
        return [shard for shard in range(SHARDS) if self._modified_ns(shard) != self._seen_ns[shard]]

    @contextmanager
    def changing(self, name: str) -> Iterator[None]:
        """Around a change of this process to an entry: it alone is no reason to scan the shard again."""
        shard = shard_of(name)
        known = self._modified_ns(shard) == self._seen_ns[shard]
        try:
            yield
        finally:
            if known:
                self._seen_ns[shard] = self._modified_ns(shard)

    def scan(self, shard: int, now_ns: int) -> dict[str, tuple[int, int]]:
        """Entries there: file name -> (bytes, when last used). A directory that is gone is empty."""
        modified_ns = self._modified_ns(shard)
        self._seen_ns[shard] = modified_ns if now_ns - modified_ns > _SETTLED_NS else _UNSETTLED
        found = {}
        with suppress(OSError), os.scandir(self._shards[shard]) as files:
            for file in files:
                if is_name(file.name) and shard_of(file.name) == shard:
                    with suppress(OSError):  # gone meanwhile
                        status = file.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            found[file.name] = (status.st_size, min(status.st_mtime_ns, now_ns))
        return found

    def _modified_ns(self, shard: int) -> int:
        try:
            return os.stat(self._shards[shard]).st_mtime_ns
        except OSError:
            return _GONE
