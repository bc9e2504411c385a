"""The engine process: `python -m headrace.engine.worker --fd N`, started by `engine.process` with one end of a socket pair.

The main thread builds the engine, then steps it. `tether` ends the process when the front is gone. SIGINT and SIGTERM are
the front's to act on and are ignored here.
"""

from __future__ import annotations

import argparse
import importlib
import os
import queue
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Protocol

from headrace.config import EngineConfig
from headrace.engine import frames
from headrace.engine.core import EngineCore, EngineFailedError
from headrace.engine.heartbeat import HEARTBEAT_S, Pulse
from headrace.engine.log import log_to_stderr
from headrace.engine.tether import Tether
from headrace.errors import EngineUnavailableError, HeadraceError
from headrace.types import EngineInfo, TokenEvent

DEFAULT_BUILDER = "headrace.engine.build:load_engine"
EXIT_CLOSED, EXIT_FAILED, EXIT_NOT_BUILT = 0, 1, 2


class Built(Protocol):
    """What a builder makes."""

    @property
    def core(self) -> EngineCore: ...

    @property
    def info(self) -> EngineInfo: ...


Builder = Callable[[Path, EngineConfig, Callable[[int, int], None]], Built]


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one engine over the inherited socket. `--builder module:function` makes another engine than the real one."""
    parser = argparse.ArgumentParser(prog="headrace.engine.worker", description="internal: one engine process")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--builder", default=DEFAULT_BUILDER)
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    log_to_stderr()
    link = socket.socket(fileno=options.fd)
    link.set_inheritable(False)  # a compiler started from here must not hold the connection open
    tether = Tether(link)
    code = Worker(tether).run(options.builder)
    sys.stdout.flush()
    sys.stderr.flush()
    tether.release()
    os._exit(code)  # Python's own way out may wait for a device that no longer answers


class Worker:
    """Builds an engine, then turns its loop until the front closes it or a step fails. `run` returns the exit code."""

    def __init__(self, tether: Tether) -> None:
        self._inbox = tether.inbox
        self._send = tether.send
        self._pulse = Pulse()

    def run(self, builder: str) -> int:
        try:
            built = self._build(builder)
        except Exception as error:
            self._send(_build_failure(error))
            return EXIT_NOT_BUILT
        self._send(frames.Ready(built.info))
        return self._serve(built.core)

    def _build(self, builder: str) -> Built:
        command = self._inbox.get()
        if not isinstance(command, frames.Build):
            raise EngineUnavailableError(f"the engine process expected what to build, not {command!r}")
        module, _, function = builder.partition(":")
        build: Builder = getattr(importlib.import_module(module), function)
        return build(Path(command.model), command.config, self._progress)

    def _progress(self, done_bytes: int, total_bytes: int) -> None:
        self._send(frames.Progress(done_bytes, total_bytes))

    def _serve(self, core: EngineCore) -> int:
        try:
            while self._obey(core):
                self._report(core, core.step())
        except Exception as error:
            traceback.print_exc()
            failure = error if isinstance(error, EngineFailedError) else core.fail(error, [])
            self._send(frames.Turned(tuple(failure.events)))
            self._send(frames.Failed("EngineUnavailableError", str(failure)))
            return EXIT_FAILED
        core.close()
        return EXIT_CLOSED

    def _obey(self, core: EngineCore) -> bool:
        """Act on the commands that have come; wait for one, up to a heartbeat, when there is nothing else to do."""
        wait_s = 0.0 if core.has_work else HEARTBEAT_S
        try:
            command = self._inbox.get(timeout=wait_s)
            while True:
                if isinstance(command, frames.Close):
                    return False
                _apply(command, core)
                command = self._inbox.get_nowait()
        except queue.Empty:
            return True

    def _report(self, core: EngineCore, events: list[TokenEvent]) -> None:
        stats = core.stats() if self._pulse.stats_due(time.monotonic(), idle=not core.has_work) else None
        if events or stats is not None:
            self._send(frames.Turned(tuple(events), stats))


def _apply(command: frames.Command | frames.FrameError, core: EngineCore) -> None:
    if isinstance(command, frames.Submit):
        core.add(command.request)
    elif isinstance(command, frames.Cancel):
        core.cancel(command.request)
    elif isinstance(command, frames.FrameError):
        raise command


def _build_failure(error: Exception) -> frames.Failed:
    """The error as the front will raise it: one line. What is not the user's to mend is also traced on stderr."""
    if isinstance(error, HeadraceError):
        kind = next(c.__name__ for c in type(error).__mro__ if c.__module__ == HeadraceError.__module__)
        return frames.Failed(kind, str(error))
    traceback.print_exception(error)
    reason = f"{type(error).__name__}: {error}".partition("\n")[0]
    return frames.Failed("EngineUnavailableError", f"the engine could not be built: {reason}")


if __name__ == "__main__":
    main()
