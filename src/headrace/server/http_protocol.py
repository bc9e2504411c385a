"""uvicorn's HTTP connection, with the bounds that it lacks: on what comes before a body, and on how long that may take.

Everything here happens before a request reaches the app, so also before a key is asked for.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.server.errors import ApiError, error_json

MAX_HEADER_BYTES = 64 << 10
"""Of the request line and all headers (and trailers) together; other servers take 8 to 64 KiB."""
HEADER_TIMEOUT_S = 60.0
"""The longest time for a new connection, or a new request on it, to send all its headers."""


class HeadersTooLargeError(Exception):
    """Raised in a callback of the parser, which then refuses the request."""


class HttpProtocol(HttpToolsProtocol):
    """Without these bounds a header that never ends fills the memory, and joining its pieces stops the loop for minutes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_bytes = 0
        self._unparsed_bytes = 0  # received since the parser last reported anything
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        """In the shape of every other error. The connection ends with it."""
        status, error = b"400 Bad Request", ApiError(400, "this is not a valid HTTP request", code="invalid_http")
        if max(self._header_bytes, self._unparsed_bytes) > MAX_HEADER_BYTES:
            status = b"431 Request Header Fields Too Large"
            error = ApiError(431, f"the headers take over {MAX_HEADER_BYTES} bytes", code="headers_too_large")
        body = error_json(error)
        if self.cycle is None or self.cycle.response_complete:  # else it would land in the middle of an answer
            head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(head % (status, len(body)) + body)
        self.transport.close()

    # Parser callbacks

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = self._unparsed_bytes = 0
        self._expect_headers()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(b": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unparsed_bytes = 0
        self._drop_deadline()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed_bytes = 0
        super().on_message_complete()

    def _count(self, size: int) -> None:
        self._unparsed_bytes = 0
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            raise HeadersTooLargeError

    # Time

    def _expect_headers(self) -> None:
        self._drop_deadline()
        self._deadline = self.loop.call_later(HEADER_TIMEOUT_S, self._on_deadline)

    def _drop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:  # an answer is under way, and the client has sent a part of its next request
            self._expect_headers()
