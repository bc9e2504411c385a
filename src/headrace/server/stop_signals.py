"""SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import os
import signal
import sys


class StopSignals:
    """Of this process, from now on until `restore`: the first is waited for, the second ends the process at once.

    The engine's process ends by itself when this one is gone.
    """

    def __init__(self) -> None:
        self.first = 0
        self._came = asyncio.Event()
        self._before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        loop = asyncio.get_running_loop()
        for number in self._before:
            loop.add_signal_handler(number, self._on_signal, number)

    async def wait(self) -> None:
        await self._came.wait()

    def restore(self) -> None:
        """Leave the process as it was. uvloop's handlers would stay with a loop that is closed, and Ctrl-C do nothing."""
        loop = asyncio.get_running_loop()
        for number, handler in self._before.items():
            loop.remove_signal_handler(number)
            if handler is not None:  # None: it was not set from Python
                signal.signal(number, handler)

    def _on_signal(self, number: int) -> None:
        if self.first:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(128 + number)
        self.first = number
        self._came.set()
