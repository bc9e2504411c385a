"""The SSD tier's store: entries in, entries out, a byte cap. Whatever the disk does is a miss or a dropped entry."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cache.ssd.allowance import NO_SPACE, Allowance
from headrace.cache.ssd.catalogue import Catalogue
from headrace.cache.ssd.counters import Counters, DropReason, MissReason, SsdStats
from headrace.cache.ssd.directory import CacheDirectory
from headrace.cache.ssd.disk import Disk
from headrace.cache.ssd.entry import read_entry, write_entry
from headrace.cache.ssd.header import Damaged, entry_bytes
from headrace.cache.ssd.key import BASE_BYTES, EntryKey, Kind, key_of
from headrace.cache.ssd.pause import Pause
from headrace.cache.ssd.pieces import Workers, flat_views
from headrace.cache.ssd.queue import Job, JobQueue

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

LOG = logging.getLogger(__name__)
_REFRESH_PARTS = 16


@dataclass(frozen=True, slots=True)
class SsdSettings:
    """directory: may be shared by servers. cap_bytes: of all entries in it, whoever wrote them; less on a disk that is full
    before. queue_bytes: of what waits to be written; what would be more is dropped. sync: flush each file before it appears
    (see docs/decisions). pause_s: after a failed write. refresh_s: how often other servers' entries are looked for.
    read_threads: that read large entries.
    """

    directory: Path
    cap_bytes: int
    queue_bytes: int = 1 << 30
    sync: bool = True
    pause_s: float = 30.0
    refresh_s: float = 10.0
    read_threads: int = 4

    def __post_init__(self) -> None:
        for name in ("cap_bytes", "queue_bytes", "read_threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}")


def _readers(threads: int) -> Workers | None:
    return Workers(ThreadPoolExecutor(threads, "headrace-ssd-read"), threads) if threads > 1 else None


class SsdStore:
    """Opening it scans the directory. Raises ConfigError if that cannot be made or written to; a full disk is none.

    Every method may be called from any thread, and only `get`, `flush` and `close` wait for the disk.
    """

    def __init__(
        self, settings: SsdSettings, disk: Disk | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings
        self._disk = disk or Disk()
        self._directory = CacheDirectory(settings.directory, self._disk)
        self._catalogue = Catalogue()
        self._allowance = Allowance(settings.cap_bytes)
        self._counters = Counters()
        self._pause = Pause(settings.directory, settings.pause_s, clock)
        self._pending: set[str] = set()  # names that wait to be written
        self._lock = threading.Lock()  # of _pending
        self._unrefreshed_bytes = 0
        self._read_errno: int | None = None
        self._directory.open()
        self._directory.remove_dead_parts()
        self._refresh()
        self._readers = _readers(settings.read_threads)
        self._queue = JobQueue(settings.queue_bytes, self._refresh, settings.refresh_s)

    def put(self, key: EntryKey, buffers: Sequence[ReadableBuffer]) -> Future[bool]:
        """Write an entry when the disk gets to it. Until the future is done the buffers must stay as they are; its result is
        False if the entry was dropped. One that is known already is not written again.
        """
        views = flat_views(buffers)
        nbytes = entry_bytes([len(view) for view in views])
        done: Future[bool] = Future()
        done.set_running_or_notify_cancel()  # it cannot be cancelled
        reason = self._refusal(nbytes)
        if reason is None and not self._begin(key.name):
            done.set_result(True)
            return done
        job = Job(nbytes, lambda: self._write(key, views, nbytes, done), lambda: self._drop(key, done, "closed"))
        if reason is None and not self._queue.add(job):
            reason = "closed" if self._queue.closed else "queue_full"
        if reason is not None:
            self._drop(key, done, reason)
        return done

    def get(self, key: EntryKey, into: Sequence[WriteableBuffer]) -> bool:
        """Fill the buffers with the entry's, which must have their sizes. False is a miss; the buffers are undefined then."""
        views = flat_views(into)
        name, began_s, used_ns = key.name, time.perf_counter(), time.time_ns()
        try:
            read_entry(self._disk, self._directory.path(name), key, views, self._readers, used_ns)
        except Damaged as damage:
            return self._missed(name, damage.reason, str(damage), remove=True)
        except FileNotFoundError:
            return self._missed(name, "vanished" if name in self._catalogue else "absent", "it is gone", remove=False)
        except OSError as error:
            return self._unreadable(name, error)
        self._read_errno = None
        self._catalogue.touch(name, used_ns)
        self._counters.hit(sum(map(len, views)), time.perf_counter() - began_s)
        return True

    def contains(self, key: EntryKey) -> bool:
        """Whether the entry was there when last looked; a `get` may still miss."""
        return key.name in self._catalogue

    def following(self, digest: bytes, kind: Kind) -> list[EntryKey]:
        """Entries that may begin at the page boundary with that chain digest: pages from there on, or checkpoints within the
        page. Whether one is of the tokens at hand is for its own digest to say.
        """
        return [key_of(name) for name in self._catalogue.with_base(digest[:BASE_BYTES].hex(), kind)]

    def remove(self, key: EntryKey) -> None:
        """Forget an entry now, and delete its file after what waits to be written."""
        name = key.name
        with self._lock:
            self._pending.discard(name)
        self._catalogue.drop(name)
        self._queue.add(Job(0, lambda: self._delete(name), lambda: None))

    @property
    def total_bytes(self) -> int:
        """Of all entries' files in the directory, as far as is known."""
        return self._catalogue.total_bytes

    def stats(self) -> SsdStats:
        return self._counters.snapshot(len(self._catalogue), self.total_bytes, self._queue.queued_bytes)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything that was put has been written or dropped; False if that took longer."""
        return self._queue.flush(timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what waits, for so long, and drop the rest. Afterwards `put` drops, and `get` must not be called."""
        if not self._queue.close(timeout_s):
            LOG.warning("ssd cache: %s does not answer; its last entry is given up", self.settings.directory)
        if self._readers is not None:
            self._readers.pool.shutdown()

    def _refusal(self, nbytes: int) -> DropReason | None:
        if nbytes > self._allowance.bytes:
            return "too_large"
        return "paused" if self._pause.active else None

    def _begin(self, name: str) -> bool:
        """Whether the entry is new, and nobody is about to write it."""
        with self._lock:
            if name in self._catalogue or name in self._pending:
                return False
            self._pending.add(name)
            return True

    def _drop(self, key: EntryKey, done: Future[bool], reason: DropReason) -> None:
        self._counters.dropped(reason)
        self._finish(key, done, False)

    def _finish(self, key: EntryKey, done: Future[bool], stored: bool) -> None:
        with self._lock:
            self._pending.discard(key.name)
        done.set_result(stored)

    def _write(self, key: EntryKey, views: Sequence[memoryview], nbytes: int, done: Future[bool]) -> None:
        """In the writer's thread, as everything below that deletes or refreshes."""
        if self._pause.active:
            return self._drop(key, done, "paused")
        began_s = time.perf_counter()
        try:
            self._write_somewhere(key, views, nbytes)
        except OSError as error:
            self._pause.failed(error)
            return self._drop(key, done, "write_error")
        except BaseException:
            self._drop(key, done, "write_error")
            raise
        self._pause.succeeded()
        self._catalogue.add(key.name, nbytes, time.time_ns())
        self._unrefreshed_bytes += nbytes
        self._counters.stored(nbytes, time.perf_counter() - began_s)
        self._finish(key, done, True)

    def _write_somewhere(self, key: EntryKey, views: Sequence[memoryview], nbytes: int) -> None:
        """On a full disk in the place of others. Raises OSError."""
        self._make_room(nbytes)
        try:
            self._write_file(key, views)
        except FileNotFoundError:  # somebody has cleared the directory
            self._directory.make()
            self._write_file(key, views)
        except OSError as error:
            if error.errno not in NO_SPACE or not self._settle_for_less(error, nbytes):
                raise
            self._make_room(nbytes)
            self._write_file(key, views)

    def _settle_for_less(self, error: OSError, nbytes: int) -> bool:
        """The disk is full: keep less from now on. Whether an entry of so many bytes can have the place of others."""
        self._refresh()
        knew = self._allowance.learnt
        if not self._allowance.full(self.total_bytes, nbytes, quota=error.errno == errno.EDQUOT):
            return False
        LOG.log(logging.INFO if knew else logging.WARNING, "ssd cache: %s: %s: %d bytes are kept, not %d",
                self.settings.directory, error.strerror, self._allowance.bytes, self.settings.cap_bytes)
        return True

    def _write_file(self, key: EntryKey, views: Sequence[memoryview]) -> None:
        path = self._directory.path(key.name)
        with self._directory.changing(key.name):
            write_entry(self._disk, self._directory.create_part(), path, key, views, sync=self.settings.sync)

    def _make_room(self, nbytes: int) -> None:
        """Evict until `nbytes` more fit. What another server has used since is spared until its turn comes."""
        if self._unrefreshed_bytes > self._allowance.bytes // _REFRESH_PARTS:
            self._refresh()
        while self.total_bytes + nbytes > self._allowance.bytes:
            oldest = self._catalogue.oldest()
            if oldest is None:
                return
            name, used_ns = oldest
            with suppress(OSError):
                really_ns = self._disk.used_ns(self._directory.path(name))
                if used_ns < really_ns <= time.time_ns():
                    self._catalogue.touch(name, really_ns)
                    continue
            self._delete(name)
            self._counters.evicted()

    def _delete(self, name: str) -> None:
        self._catalogue.drop(name)
        with suppress(OSError), self._directory.changing(name):
            self._disk.unlink(self._directory.path(name))

    def _refresh(self) -> None:
        """Take note of what other servers have written and evicted. Also the scan at start-up."""
        now_ns = time.time_ns()
        self._unrefreshed_bytes = 0
        for shard in self._directory.changed():
            self._catalogue.replace(shard, self._directory.scan(shard, now_ns))
        if self._allowance.may_grow:
            with suppress(OSError):
                self._allowance.free(self.total_bytes, self._directory.free_bytes())

    def _missed(self, name: str, reason: MissReason, why: str, *, remove: bool) -> bool:
        self._counters.miss(reason)
        if reason != "absent":
            what = "; removed" if remove else ""
            level = logging.INFO if reason == "vanished" else logging.WARNING
            LOG.log(level, "ssd cache: a miss (%s): %s: %s%s", reason, self._directory.path(name), why, what)
        if remove:
            self._delete(name)
        else:
            self._catalogue.drop(name)
        return False

    def _unreadable(self, name: str, error: OSError) -> bool:
        if error.errno == errno.ELOOP:  # a link in the entry's place
            return self._missed(name, "foreign", "it is a link", remove=True)
        bad = error.errno == errno.EIO
        if error.errno != self._read_errno or bad:
            LOG.warning("ssd cache: %s cannot be read: %s", self._directory.path(name), error.strerror)
        self._read_errno = error.errno
        self._counters.miss("unreadable")
        if bad:
            self._delete(name)
        return False
