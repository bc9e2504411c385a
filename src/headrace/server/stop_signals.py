"""SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import os
import signal
import sys


class StopSignals:
    """Of this process, from now on: the first is waited for, the second ends the process at once.

    The engine's process ends by itself when this one is gone.
    """

    def __init__(self) -> None:
        self.first = 0
        self._came = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    async def wait(self) -> None:
        await self._came.wait()

    def _on_signal(self, number: int) -> None:
        if self.first:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(128 + number)
        self.first = number
        self._came.set()
