"""A server of one's own bytes: what a client makes of answers that no proper server gives."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from headrace.bench.exchange import Server

Script = Callable[[str, bytes], Sequence[tuple[float, bytes]]]
"""(request line and headers, body) -> parts to send, each after a pause in seconds; then the connection is closed."""

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


class RawServer:
    """An async context manager. `requests`: (head, body) of each. `written_s`: when each part was written, on perf_counter."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.requests: list[tuple[str, bytes]] = []
        self.written_s: list[float] = []

    async def __aenter__(self) -> RawServer:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.address = Server("127.0.0.1", self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lengths = [line.split(":")[1] for line in head.splitlines() if line.startswith("content-length:")]
        body = await reader.readexactly(int(lengths[0]) if lengths else 0)
        self.requests.append((head, body))
        for pause_s, part in self._script(head, body):
            await asyncio.sleep(pause_s)
            self.written_s.append(time.perf_counter())
            writer.write(part)
        writer.close()


def event(value: object) -> bytes:
    return b"data: " + (value.encode() if isinstance(value, str) else json.dumps(value).encode()) + b"\n\n"


def text_event(text: str | None, finish: str | None = None) -> bytes:
    """A chunk of /v1/completions."""
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": None})


def usage_event(prompt: int, completion: int, cached: int | None = None) -> bytes:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **details}})


DONE = event("[DONE]")
