"""What waits to be done to the disk, in order, up to a number of bytes; and the thread that does it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """run: does it, and raises nothing it expects. drop: instead of it, if there is no time left. Either is called once."""

    nbytes: int
    run: Callable[[], None]
    drop: Callable[[], None]


class JobQueue:
    """One thread, which ends with the process: a disk that hangs holds nobody up. idle: called about every `idle_s`."""

    def __init__(self, limit_bytes: int, idle: Callable[[], None], idle_s: float) -> None:
        self._limit_bytes = limit_bytes
        self._idle = idle
        self._idle_s = idle_s
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self.closed = False
        self.queued_bytes = 0
        self._thread = threading.Thread(target=self._work, name="headrace-ssd", daemon=True)
        self._thread.start()

    def add(self, job: Job) -> bool:
        """Never waits. False if the queue is closed, or has so much that the job's bytes would be too many."""
        with self._changed:
            if self.closed or (job.nbytes and self.queued_bytes and self.queued_bytes + job.nbytes > self._limit_bytes):
                return False
            self._jobs.append(job)
            self.queued_bytes += job.nbytes
            self._changed.notify_all()
            return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is done that was added; False if that took longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._busy, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Take nothing more, do what is waiting for so long, drop the rest. Whether the thread has ended."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        self.flush(timeout_s)
        with self._changed:
            dropped, self._jobs = self._jobs, deque()
            self.queued_bytes -= sum(job.nbytes for job in dropped)
        for job in dropped:
            job.drop()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        idle_at_s = time.monotonic() + self._idle_s
        while True:
            job = self._next(idle_at_s)
            if job is not None:
                self._do(job)
            elif self.closed:
                return
            if time.monotonic() >= idle_at_s:
                self._guarded(self._idle)
                idle_at_s = time.monotonic() + self._idle_s

    def _next(self, until_s: float) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self.closed, max(0.0, until_s - time.monotonic()))
            self._busy = bool(self._jobs)
            return self._jobs.popleft() if self._jobs else None

    def _do(self, job: Job) -> None:
        self._guarded(job.run)
        with self._changed:
            self._busy = False
            self.queued_bytes -= job.nbytes
            self._changed.notify_all()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # a fault of ours costs entries, not the thread
            LOG.exception("ssd cache: unexpected error")
