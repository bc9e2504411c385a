"""Streams under stress: keep-alives, slow clients, thousands that wait, failures in the middle."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import psutil
from tests.support.live_front import LiveFront, events, text_of

from headrace.engine.tokenizer import Tokenizer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


async def test_comments_keep_a_waiting_stream_alive(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, keep_alive_s=0.05) as front:
        front.engine.held = True
        async with front.client.stream("POST", CHAT, json=BODY) as response:
            assert response.status_code == 200
            blocks = response.aiter_text()
            text = ""
            while text.count(": ") < 4:
                text += await anext(blocks)
            assert set(text.split("\n\n")) == {": still working", ""}
            front.engine.held = False
            async for block in blocks:
                text += block
        chunks, done = events(text)
        assert done and text_of(chunks) == "hello"


async def test_a_stream_that_flows_gets_no_comments(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, keep_alive_s=0.1, step_s=0.02) as front:
        front.emits(front.bytewise("abcdefghijklmnopqrst"))
        response = await front.post(CHAT, BODY)
        assert ":" not in {line[:1] for line in response.text.splitlines()}


async def test_nothing_is_sent_before_the_first_token(front: LiveFront) -> None:
    """So that a failure until then is an HTTP error, which clients know how to retry."""
    front.engine.held = True
    task = asyncio.ensure_future(front.post(CHAT, BODY))
    while not front.engine.running:
        await asyncio.sleep(0.005)
    front.engine.die("out of luck")
    response = await task
    error = front.error(response, 503)
    assert error["message"] == "out of luck" and response.headers["retry-after"]


async def test_an_engine_that_dies_ends_open_streams_with_an_error(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, step_s=0.01) as front:
        front.emits([70] * 400)
        body = {**BODY, "prompt": "x", "n": 2, "max_tokens": 400}
        tasks = [asyncio.ensure_future(front.post(path, body)) for path in (CHAT, COMPLETIONS)]
        while sum(front.engine.emitted.values()) < 20:
            await asyncio.sleep(0.005)
        front.engine.die("the engine process was ended by signal SIGKILL")
        for response in await asyncio.gather(*tasks):
            chunks, done = events(response.text)
            assert not done and "SIGKILL" in chunks[-1]["error"]["message"]
            assert chunks[-1]["error"]["type"] == "service_unavailable_error"
            assert all(choice["finish_reason"] is None for chunk in chunks[:-1] for choice in chunk["choices"])
        front.error(await front.post(CHAT, BODY), 503)


async def test_a_request_that_fails_alone(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, step_s=0.01) as front:
        front.emits([70] * 50)
        different = ({"max_tokens": 50}, {"max_tokens": 49, "stream": False}, {"max_tokens": 48})
        tasks = [asyncio.ensure_future(front.post(CHAT, {**BODY, **each})) for each in different]
        while len(front.engine.emitted) < 3 or min(front.engine.emitted.values()) < 5:
            await asyncio.sleep(0.005)
        for request in front.engine.submitted:
            if request.max_tokens > 48:
                front.engine.fail(request.id, "it broke")
        streamed, whole, other = await asyncio.gather(*tasks)
        assert events(streamed.text)[0][-1]["error"]["message"] == "it broke"
        assert front.error(whole, 500)["message"] == "it broke"
        assert text_of(events(other.text)[0]) == front.tokenizer.decode([70] * 48)


async def test_a_slow_client_holds_back_only_itself(tokenizer: Tokenizer) -> None:
    """It reads nothing while its engine makes 200,000 tokens; they are merged, and it gets all of them in the end."""
    count = 200_000
    async with LiveFront(tokenizer, context=count + 100, step_tokens=50) as front:
        front.emits(front.bytewise("x") * count)
        reader = _request(front, COMPLETIONS, {"prompt": "x", "stream": True, "max_tokens": count})
        before = psutil.Process().memory_info().rss
        while front.engine.running or not front.engine.submitted:
            await asyncio.sleep(0.01)
        assert psutil.Process().memory_info().rss - before < 24 << 20  # as chunks they take 40 MB
        await front.alive()
        text = await asyncio.to_thread(_read_all, reader)
        assert sum(len(chunk["choices"][0]["text"]) for chunk in _chunks(text)) == count


def _request(front: LiveFront, path: str, body: object) -> socket.socket:
    """Send a request on a socket with a small buffer, and do not read."""
    host, _, port = front.url.removeprefix("http://").partition(":")
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect((host, int(port)))
    reader.sendall(_raw_request(path, body))
    return reader


def _raw_request(path: str, body: object) -> bytes:
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw


def _read_all(reader: socket.socket) -> bytes:
    parts = []
    with reader:
        while part := reader.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def _chunks(raw: bytes) -> list[dict[str, list[dict[str, str]]]]:
    """Of a chunked HTTP answer."""
    body = raw.partition(b"\r\n\r\n")[2]
    lines = [line for line in body.split(b"\r\n") if line.startswith(b"data: ")]
    text = b"".join(lines).decode()
    chunks, done = events(text)
    assert done
    return chunks


async def test_a_thousand_requests_wait(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, keep_alive_s=0.5) as front:
        front.engine.held = True
        before = psutil.Process().memory_info().rss
        tasks = [asyncio.ensure_future(_ask(front, {**BODY, "stream": bool(index % 2)})) for index in range(1000)]
        while len(front.engine.running) < 1000:
            await asyncio.sleep(0.02)
        # Both ends of every connection are in this process.
        assert psutil.Process().memory_info().rss - before < 200 << 20
        started = time.monotonic()
        assert (await front.client.get("/health")).status_code == 200
        assert time.monotonic() - started < 1.0
        front.engine.held = False
        answers = await asyncio.gather(*tasks)
        assert all(answer.startswith(b"HTTP/1.1 200") and b"hello" in answer for answer in answers)
        assert front.engine.running == ()


async def _ask(front: LiveFront, body: object) -> bytes:
    """The whole raw answer. (httpx takes a second for each thousand connections that it has, at every answer.)"""
    host, _, port = front.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(_raw_request(CHAT, body))
    answer = await reader.read()
    writer.close()
    return answer
