"""What comes before a body is bounded in size and time, whoever sends it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

import pytest
from tests.support.live_front import LiveFront

from headrace.server import http_protocol

GOOD = b'{"prompt":"yes","max_tokens":1}'
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
PIECE = b"x" * 50_000


async def _talk(front: LiveFront, pieces: Iterable[bytes], limit_s: float = 10.0) -> bytes:
    """What the server answers to `pieces`, until it closes the connection or has nothing more to say for a while."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(front.url.rpartition(":")[2]))
    answer = b""
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.001)
        async with asyncio.timeout(limit_s):
            while part := await reader.read(1 << 16):
                answer += part
    except (ConnectionError, TimeoutError):
        pass
    finally:
        writer.close()
    return answer


def _error(answer: bytes, status: int) -> dict[str, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    error: dict[str, str] = json.loads(body)["error"]
    return error


@pytest.mark.parametrize("pieces", [
    [POST, b"X: ", *[PIECE] * 4],
    [b"GET /", *[PIECE] * 4],
    [POST, *(b"X%d: %s\r\n" % (i, b"v" * 1000) for i in range(80))],
    [POST, *(b"X%d:\r\n" % i for i in range(10_000))],
    [POST + b"X: " + b"v" * 70_000 + b"\r\n\r\n"],
], ids=["one value", "request line", "many headers", "many empty headers", "at once"])
async def test_headers_are_bounded(front: LiveFront, pieces: list[bytes]) -> None:
    answer = await _talk(front, pieces)
    assert not answer or "headers" in _error(answer, 431)["message"]  # a reset may overtake the answer
    await front.alive()
    assert not front.engine.running


async def test_trailers_are_bounded(front: LiveFront) -> None:
    body = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    await _talk(front, [POST + body, *(b"X%d: %s\r\n" % (i, b"v" * 1000) for i in range(200))])  # ends: it was closed
    await front.alive()


async def test_large_but_sane_headers_and_slow_senders_pass(front: LiveFront) -> None:
    request = POST + b"X: " + b"v" * 60_000 + b"\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(GOOD) + GOOD
    assert b" 200 OK" in await _talk(front, [request])
    small = POST + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(GOOD) + GOOD
    assert b" 200 OK" in await _talk(front, [bytes([byte]) for byte in small])
    keep_alive = POST + b"Y: " + b"v" * 30_000 + b"\r\nContent-Length: %d\r\n\r\n" % len(GOOD) + GOOD
    assert (await _talk(front, [keep_alive] * 4, limit_s=1.0)).count(b" 200 OK") == 4  # the bound is for each request


async def test_large_bodies_are_no_headers(front: LiveFront) -> None:
    body = json.dumps({"prompt": "yes", "max_tokens": 1, "user": "u" * 300_000}).encode()
    request = POST + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    assert b" 200 OK" in await _talk(front, [request, body[:100_000], body[100_000:200_000], body[200_000:]])


async def test_what_is_no_http_is_told_in_json(front: LiveFront) -> None:
    assert _error(await _talk(front, [b"\x16\x03\x01\x02\x00 hello\r\n\r\n"]), 400)["code"] == "invalid_http"
    await front.alive()


@pytest.mark.parametrize("begun", [b"", b"POST /v1/comp", POST + b"X: y\r\n"])
async def test_headers_must_come_in_time(front: LiveFront, begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_TIMEOUT_S", 0.2)
    async with asyncio.timeout(5.0):
        assert await _talk(front, [begun]) == b""
    await front.alive()
