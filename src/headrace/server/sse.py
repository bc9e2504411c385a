"""A streamed answer: server-sent events straight to the ASGI server, with comments while nothing is to be said."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.errors import HeadraceError
from headrace.server.answer import AnswerFormat
from headrace.server.choice import Choice
from headrace.server.connection import ClientGoneError, while_connected
from headrace.server.errors import as_api_error, error_json, error_response
from headrace.server.front import Front
from headrace.server.generation import Generation
from headrace.server.offload import offload
from headrace.server.schemas.sampling import StreamOptions

COMMENT = b": still working\n\n"
DONE = b"data: [DONE]\n\n"
LOG = logging.getLogger(__name__)
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventWriter:
    """Writes events to one client; the status line goes out with the first of them.

    `write` returns when the connection can take more, which is how a slow client holds its reader back and nobody else.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start = asyncio.Lock()
        self._waiting = 0
        self.started = False
        self.written_s = time.monotonic()

    async def write(self, events: bytes, *, last: bool = False) -> None:
        if not self.started:
            await self._begin()
        self._waiting += 1
        try:
            await self._send({"type": "http.response.body", "body": events, "more_body": not last})
        finally:
            self._waiting -= 1
        self.written_s = time.monotonic()

    async def _begin(self) -> None:
        async with self._start:
            if not self.started:
                await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                self.started = True

    async def keep_alive(self, interval_s: float) -> None:
        """Write a comment whenever nothing was written for `interval_s`; never ends."""
        while True:
            quiet_s = time.monotonic() - self.written_s
            if quiet_s >= interval_s and not self._waiting:
                await self.write(COMMENT)
                quiet_s = 0.0
            await asyncio.sleep(max(interval_s - quiet_s, interval_s / 10))


class EventStreamResponse(Response):
    """Answers with the choices of `generation` as they come.

    A failure before the first byte is an HTTP error; later it is an `error` event, and the stream ends without [DONE].
    """

    def __init__(self, front: Front, generation: Generation, form: AnswerFormat, options: StreamOptions | None) -> None:
        self._front = front
        self._generation = generation
        self._form = form
        self._shows_usage = bool(options and options.include_usage)
        self._shows_running_usage = bool(options and options.continuous_usage_stats)
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = EventWriter(send)
        keep_alive = asyncio.ensure_future(writer.keep_alive(self._front.keep_alive_s))
        try:
            with self._front.answering(self._generation):
                await while_connected(receive, self._write_all(writer))
        except ClientGoneError:
            LOG.info("%s aborted by client", scope["path"])
        except Exception as error:
            keep_alive.cancel()
            await self._fail(error, writer, scope, receive, send)
        finally:
            keep_alive.cancel()

    async def _write_all(self, writer: EventWriter) -> None:
        async def write_choice(choice: Choice) -> None:
            await self._write_choice(choice, writer)

        await self._generation.for_each(write_choice)
        end = self._form.closing(self._generation.usage()) if self._shows_usage else b""
        await writer.write(end + DONE, last=True)

    async def _write_choice(self, choice: Choice, writer: EventWriter) -> None:
        first = True
        async for piece in choice.pieces():
            usage = self._generation.usage() if self._shows_running_usage else None
            write = partial(self._form.events, choice, piece, usage, first=first)
            events = await offload(len(piece.prompt_logprobs), write)
            first = False
            if events:
                await writer.write(events)

    async def _fail(self, error: Exception, writer: EventWriter, scope: Scope, receive: Receive, send: Send) -> None:
        shown = as_api_error(error)
        if not isinstance(error, HeadraceError):
            LOG.error("%s failed", scope["path"], exc_info=error)
        if writer.started:
            await writer.write(b"data: " + error_json(shown) + b"\n\n", last=True)
        else:
            await error_response(shown)(scope, receive, send)
