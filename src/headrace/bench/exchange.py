"""One HTTP/1.1 request and its response, each part of which is passed on with the time of its arrival.

Lean, because what the client spends is added to what it measures: bytes go from the event loop to the C parser of httptools
and on, without a task switch.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httptools

from headrace.errors import ConfigError


@dataclass(slots=True)
class Response:
    """headers: by lower-case name."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)


OnBody = Callable[[Response, float, bytes], None]
"""Takes a part of a response's body and when it arrived, on the clock of time.perf_counter."""

GET_TIMEOUT_S = 30.0


class ConnectError(Exception):
    """There is nobody at the address."""


class DisconnectedError(Exception):
    """The connection ended before the response did, or what came over it is not HTTP."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where requests go. `path`: what precedes /v1 in the address, mostly nothing."""

    host: str
    port: int
    path: str = ""
    tls: bool = False
    api_key: str | None = None

    @classmethod
    def at(cls, url: str, api_key: str | None = None) -> Server:
        """From "http://127.0.0.1:8000", with or without a path that ends with /v1. Raises ConfigError for anything else."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigError(f"--url must look like http://127.0.0.1:8000, not {url!r}")
        tls = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if tls else 80), path, tls, api_key)

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.path}"

    def request(self, method: str, path: str, body: bytes) -> bytes:
        """The bytes of a request for `path`, after whose response the server closes the connection."""
        head = [f"{method} {self.path}{path} HTTP/1.1", f"host: {self.authority}", "connection: close"]
        if self.api_key:
            head.append(f"authorization: Bearer {self.api_key}")
        if body:
            head += ["content-type: application/json", f"content-length: {len(body)}"]
        return "\r\n".join(head).encode() + b"\r\n\r\n" + body


async def exchange(server: Server, method: str, path: str, body: bytes, on_body: OnBody) -> Response:
    """Send a request on a connection of its own; returns when all of the response has been passed to `on_body`.

    Raises ConnectError, DisconnectedError, and what `on_body` raises. The connection is closed in any case.
    """
    loop = asyncio.get_running_loop()
    context = _tls() if server.tls else None
    protocol = _Exchange(server.request(method, path, body), on_body, loop.create_future())
    try:
        transport, _ = await loop.create_connection(lambda: protocol, server.host, server.port, ssl=context)
    except OSError as error:
        raise ConnectError(error.strerror or str(error)) from None
    try:
        await protocol.ended
    finally:
        transport.abort()
    return protocol.response


async def get(server: Server, path: str) -> tuple[Response, bytes]:
    """A whole response, within GET_TIMEOUT_S. Raises as `exchange` does."""
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(GET_TIMEOUT_S):
            response = await exchange(server, "GET", path, b"", lambda response, arrived_s, data: parts.append(data))
    except TimeoutError:
        raise DisconnectedError(f"no answer within {GET_TIMEOUT_S:g} s") from None
    return response, b"".join(parts)


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


class _Exchange(asyncio.Protocol):
    """Also the parser's protocol: the on_... methods are called from inside `data_received`."""

    def __init__(self, request: bytes, on_body: OnBody, ended: asyncio.Future[None]) -> None:
        self.response = Response()
        self.ended = ended
        self._request = request
        self._pass_on = on_body
        self._parser = httptools.HttpResponseParser(self)
        self._arrived_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._arrived_s = time.perf_counter()
        if self.ended.done():
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._fail(error.__context__ or error)
        except httptools.HttpParserError as error:
            self._fail(DisconnectedError(f"not HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            if error is None and self._lasts_until_close():
                self.ended.set_result(None)
            else:
                self._fail(DisconnectedError(str(error) if error else "the server closed the connection early"))

    def _lasts_until_close(self) -> bool:
        headers = self.response.headers
        return bool(self.response.status) and not headers.keys() & {"content-length", "transfer-encoding"}

    def _fail(self, error: BaseException) -> None:
        self.ended.set_exception(error)

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self.response.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.response.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._pass_on(self.response, self._arrived_s, data)

    def on_message_complete(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def error_message(body: bytes) -> str:
    """What the server says in the body of an error, on one line."""
    try:
        answer: Any = json.loads(body)
    except ValueError:
        answer = body.decode(errors="replace")
    error = answer.get("error", answer) if isinstance(answer, Mapping) else answer
    text = error.get("message", error) if isinstance(error, Mapping) else error
    return " ".join(str(text).split())[:300]
