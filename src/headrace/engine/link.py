"""The front's end of the connection to an engine process, as an asyncio protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from headrace.engine import frames

MAX_UNSENT_BYTES = 64 << 20
"""What may wait in the front for an engine process that does not read."""


class Link(asyncio.Protocol):
    """Hands every report to `on_report`, in order, and calls `on_lost` once when the connection is gone.

    `on_lost` is given the reason if the engine sent something that cannot be read, else an empty string.
    """

    def __init__(self, on_report: Callable[[frames.Report], None], on_lost: Callable[[str], None]) -> None:
        self._on_report = on_report
        self._on_lost = on_lost
        self._reader = frames.report_reader()
        self._transport: asyncio.WriteTransport | None = None
        self._malformed = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are no subclasses of it

    def data_received(self, data: bytes) -> None:
        try:
            for report in self._reader.feed(data):
                self._on_report(report)
        except frames.FrameError as error:
            self._malformed = f"the engine process sent what cannot be read: {error}"
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost(self._malformed)

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, command: frames.Command) -> None:
        """Write without waiting; to a lost connection, nothing."""
        if self._transport is not None:
            self._transport.write(frames.encode(command))

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
