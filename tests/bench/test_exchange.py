from __future__ import annotations

import asyncio

import pytest
from tests.support.raw_server import RawServer

from headrace.bench.exchange import ConnectError, DisconnectedError, Response, Server, error_message, exchange, get
from headrace.errors import ConfigError


def every_byte(data: bytes) -> list[tuple[float, bytes]]:
    return [(0.0, bytes([byte])) for byte in data]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhelloand more",
    ],
    ids=["length", "chunked", "until close", "too long"],
)
@pytest.mark.parametrize("cut", [every_byte, lambda data: [(0.0, data)]], ids=["bytewise", "at once"])
async def test_a_body_is_passed_on_whole(answer: bytes, cut: object) -> None:
    async with RawServer(lambda head, body: cut(answer)) as server:  # type: ignore[operator]
        response, body = await get(server.address, "/")
    assert (response.status, body) == (200, b"hello")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nconte",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ],
)
async def test_a_response_that_breaks_off_is_told(answer: bytes) -> None:
    async with RawServer(lambda head, body: [(0.0, answer)]) as server:
        with pytest.raises(DisconnectedError):
            await get(server.address, "/")


async def test_an_answer_without_a_body_has_ended() -> None:
    answer = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nRetry-After: 7\r\n\r\n"
    async with RawServer(lambda head, body: [(0.0, answer)]) as server:
        response, body = await get(server.address, "/")
    assert (response.status, response.headers["retry-after"], body) == (503, "7", b"")


async def test_nobody_there() -> None:
    async with RawServer(lambda head, body: []) as server:
        address = server.address
    with pytest.raises(ConnectError):
        await get(address, "/")


async def test_what_the_reader_raises_comes_out_and_the_connection_is_closed() -> None:
    def refuse(response: Response, arrived_s: float, data: bytes) -> None:
        raise ZeroDivisionError

    async with RawServer(lambda head, body: [(0.0, b"HTTP/1.1 200 OK\r\n\r\nhello")]) as server:
        with pytest.raises(ZeroDivisionError):
            await exchange(server.address, "GET", "/", b"", refuse)


async def test_leaving_early_closes_the_connection() -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
        try:
            await reader.read()
        except ConnectionResetError:
            pass
        closed.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        address = Server("127.0.0.1", listening.sockets[0].getsockname()[1])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(exchange(address, "GET", "/", b"", lambda *part: None), 0.1)
        await asyncio.wait_for(closed.wait(), 5)


async def test_the_request_says_where_it_goes_and_who_asks() -> None:
    async with RawServer(lambda head, body: [(0.0, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")]) as raw:
        server = Server.at(f"http://127.0.0.1:{raw.address.port}/proxy/v1/", api_key="secret")
        await exchange(server, "POST", "/v1/completions", b"{}", lambda *part: None)
    ((head, body),) = raw.requests
    lines = head.splitlines()
    assert lines[0] == "POST /proxy/v1/completions HTTP/1.1"
    assert {"authorization: Bearer secret", "content-length: 2", f"host: 127.0.0.1:{raw.address.port}"} <= set(lines)
    assert body == b"{}"


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("http://127.0.0.1:8000", Server("127.0.0.1", 8000)),
        ("localhost:8001/v1", Server("localhost", 8001)),
        ("https://example.com/a/v1", Server("example.com", 443, "/a", tls=True)),
        ("http://[::1]:8000", Server("::1", 8000)),
    ],
)
def test_addresses(url: str, server: Server) -> None:
    assert Server.at(url) == server
    assert Server.at(server.url) == server


def test_an_ipv6_address_has_brackets_in_the_request() -> None:
    assert b"\r\nhost: [::1]:8000\r\n" in Server("::1", 8000).request("GET", "/", b"")


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", "http://x:port"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="--url must look like"):
        Server.at(url)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too\\nlong", "code": 1}}', "too long"),
        (b'{"object": "error", "message": "too long"}', "too long"),
        (b'{"error": "too long"}', "too long"),
        (b"<h1>too long</h1>", "<h1>too long</h1>"),
        (b"[1]", "[1]"),
        (b"\xff", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_error_messages(body: bytes, message: str) -> None:
    assert error_message(body) == message
