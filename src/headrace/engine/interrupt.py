"""Ctrl-C between steps: a step that is torn apart would leave the scheduler and the device at odds."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class DeferredInterrupt:
    """While entered, a SIGINT waits for `check` or the exit; a second one before that acts at once.

    Does nothing outside the main thread, where Python runs no handlers, or where SIGINT has no handler in Python.
    """

    def __init__(self) -> None:
        self._handler = signal.getsignal(signal.SIGINT)
        self._active = threading.current_thread() is threading.main_thread() and callable(self._handler)
        self._came = False

    def __enter__(self) -> DeferredInterrupt:
        if self._active:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._active:
            signal.signal(signal.SIGINT, self._handler)
            if error is None:
                self._act()

    def check(self) -> None:
        """Let the handler that was there before act on a SIGINT that has come: by default it raises KeyboardInterrupt."""
        if self._came:
            signal.signal(signal.SIGINT, self._note)
            self._act()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        signal.signal(signal.SIGINT, self._handler)

    def _act(self) -> None:
        if self._came and callable(self._handler):
            self._came = False
            self._handler(signal.SIGINT, None)
