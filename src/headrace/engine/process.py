"""The engine in a process of its own, seen from the front's asyncio loop.

If either process dies the other ends: the engine process leaves when its connection closes, and here every stream ends with
an error, and `wait_dead` returns, when the engine's end closes.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from headrace import errors
from headrace.config import EngineConfig
from headrace.engine import frames
from headrace.engine.link import MAX_UNSENT_BYTES, Link
from headrace.engine.queue_limit import QueueLimit
from headrace.engine.streams import EventStream, Mailbox
from headrace.engine.worker import DEFAULT_BUILDER
from headrace.errors import EngineUnavailableError, HeadraceError, QueueFullError
from headrace.types import EngineInfo, EngineStats, Request, TokenEvent

CLOSE_GRACE_S = 5.0
"""How long a closing engine may finish the step it is in."""
REAP_S = 2.0
"""How long a process whose connection is gone may take to end before it is killed."""

Progress = Callable[[int, int], None]


class EngineProcess:
    """Implements `engine.client.Engine`. Made by `start`; all methods are called from the loop that started it."""

    def __init__(self, child: subprocess.Popen[bytes], max_queue: int, on_progress: Progress | None) -> None:
        self._child = child
        self._max_queue = max_queue
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._link = Link(self._on_report, self._on_lost)
        self._mailboxes: dict[str, Mailbox | None] = {}  # of unfinished requests; None when nobody reads any more
        self._limit = QueueLimit(max_queue)
        self._ready: asyncio.Future[EngineInfo] = self._loop.create_future()
        self._dead: asyncio.Future[str] = self._loop.create_future()
        self._lost = False
        self._closing = False
        self._failure: frames.Failed | None = None
        self._burial: asyncio.Task[None] | None = None
        self._stats = EngineStats()
        self._turned_s = time.monotonic()

    # Life

    @classmethod
    async def start(
        cls,
        model_path: str,
        config: EngineConfig,
        *,
        max_queue: int,
        on_progress: Progress | None = None,
        builder: str = DEFAULT_BUILDER,
    ) -> EngineProcess:
        """Start the process, load the model, and return when it is ready.

        on_progress is given (bytes loaded, bytes in all). Raises the CheckpointError or ConfigError that loading ended in, and
        EngineUnavailableError when the process ended otherwise. `builder` ("module:function") is for tests.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            engine = cls(_spawn(theirs, builder), max_queue, on_progress)
        try:
            await engine._loop.create_unix_connection(lambda: engine._link, sock=ours)
            engine._link.send(frames.Build(model_path, config))
            ends: list[asyncio.Future[Any]] = [engine._ready, engine._dead]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not engine._ready.done():
                raise engine._start_error()
        except BaseException:
            await engine._kill()
            raise
        return engine

    def _start_error(self) -> HeadraceError:
        kind = EngineUnavailableError if self._failure is None else getattr(errors, self._failure.kind)
        error: HeadraceError = kind(self._dead.result())
        return error

    async def close(self) -> None:
        """End the engine: after the step it is in if that takes at most CLOSE_GRACE_S, else by force."""
        self._closing = True
        self._link.send(frames.Close())
        await asyncio.wait([self._dead], timeout=CLOSE_GRACE_S)
        await self._kill()

    async def wait_dead(self) -> str:
        """Wait for the engine's end, whatever its cause, and return the reason in one line."""
        return await asyncio.shield(self._dead)

    async def _kill(self) -> None:
        self._closing = True
        if not self._dead.done():
            self._child.kill()
            self._link.abort()
            self._on_lost("")
            await asyncio.shield(self._dead)

    def _on_lost(self, malformed: str) -> None:
        if not self._lost:
            self._lost = True
            self._burial = self._loop.create_task(self._bury(malformed))

    async def _bury(self, malformed: str) -> None:
        """See the process end, then tell everyone who waits for it."""
        if malformed:
            self._child.kill()
        code = await asyncio.to_thread(_reap, self._child)
        reason = malformed or self._reason(code)
        for request, mailbox in self._mailboxes.items():
            if mailbox is not None:
                mailbox.put(TokenEvent(request, finish_reason="error", error=reason))
        self._mailboxes.clear()
        self._dead.set_result(reason)

    def _reason(self, code: int) -> str:
        if self._failure is not None:
            return self._failure.message
        if self._closing:
            return "the engine was closed"
        if code >= 0:
            return f"the engine process ended with exit code {code}"
        hint = "; the system may have run out of memory" if code == -signal.SIGKILL else ""
        return f"the engine process was ended by signal {signal.Signals(-code).name}{hint}"

    # Reports

    def _on_report(self, report: frames.Report) -> None:
        if isinstance(report, frames.Turned):
            self._on_turned(report)
        elif isinstance(report, frames.Progress):
            if self._on_progress is not None:
                self._on_progress(report.done_bytes, report.total_bytes)
        elif isinstance(report, frames.Failed):
            self._failure = report
        elif not self._ready.done():
            self._turned_s = time.monotonic()
            self._limit = QueueLimit(report.info.max_seqs + self._max_queue)
            self._ready.set_result(report.info)

    def _on_turned(self, report: frames.Turned) -> None:
        self._turned_s = time.monotonic()
        if report.stats is not None:
            self._stats = report.stats
        for event in report.events:
            if event.request in self._mailboxes:
                self._deliver(event)

    def _deliver(self, event: TokenEvent) -> None:
        mailbox = self._mailboxes[event.request]
        if mailbox is not None:
            mailbox.put(event)
        if event.finish_reason is not None:
            del self._mailboxes[event.request]
            self._limit.leave()

    # Engine

    @property
    def info(self) -> EngineInfo:
        return self._ready.result()

    @property
    def pid(self) -> int:
        return self._child.pid

    def submit(self, request: Request) -> AsyncIterator[TokenEvent]:
        """See `engine.client.Engine.submit`. Raises ValueError for an id that is in use.

        A reader that stops reading before the end cancels the request: see `streams.EventStream`.
        """
        if self._lost or self._closing:
            raise EngineUnavailableError(self._dead.result() if self._dead.done() else "the engine is ending")
        if request.id in self._mailboxes:
            raise ValueError(f"request {request.id!r} is running already")
        if self._link.unsent_bytes > MAX_UNSENT_BYTES:
            raise QueueFullError("the engine is too busy to take more requests", retry_after_s=self._limit.retry_after_s())
        self._limit.enter()
        mailbox = self._mailboxes[request.id] = Mailbox()
        self._link.send(frames.Submit(request))
        request_id = request.id  # the stream must not keep the prompt
        return EventStream(mailbox, lambda: self._abandon(request_id), self._loop)

    def cancel(self, request_id: str) -> None:
        if request_id in self._mailboxes:
            self._link.send(frames.Cancel(request_id))

    def _abandon(self, request_id: str) -> None:
        if request_id in self._mailboxes:
            self._mailboxes[request_id] = None
            self.cancel(request_id)

    def stats(self) -> EngineStats:
        return self._stats

    def heartbeat_age_s(self) -> float:
        return float("inf") if self._lost else time.monotonic() - self._turned_s


def _spawn(theirs: socket.socket, builder: str) -> subprocess.Popen[bytes]:
    # -P: the current directory must not shadow modules of the engine.
    command = [sys.executable, "-P", "-m", "headrace.engine.worker", "--fd", str(theirs.fileno()), "--builder", builder]
    return subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)


def _reap(child: subprocess.Popen[bytes]) -> int:
    """Wait for the process, by force after REAP_S. Its exit code, negative for a signal."""
    try:
        return child.wait(REAP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()
