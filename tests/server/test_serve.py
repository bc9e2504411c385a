"""The life of a server process: its address, signals, draining, and what happens when its engine dies."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.live_front import events
from tests.support.scripted_engine import ScriptedEngine

from headrace.config import ServerConfig
from headrace.engine.tokenizer import Tokenizer
from headrace.errors import CheckpointError, ConfigError
from headrace.server.listen import bind, is_loopback, url
from headrace.server.serve import Service, run

ROOT = Path(__file__).parents[2]
Start = Callable[..., "Server"]


class Server:
    def __init__(self, directory: Path, *options: str) -> None:
        command = [sys.executable, "-m", "tests.support.scripted_server", str(directory), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={"PYTHONPATH": "src:."})
        assert self.line() == "loading"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ready(self) -> str:
        """Its address, once it is ready."""
        found = re.fullmatch(r"headrace is ready: scripted on (http://127\.0\.0\.1:\d+)", self.line())
        assert found
        return found[1]

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Start]:
    made: list[Server] = []

    def start(*options: str) -> Server:
        made.append(Server(tmp_path, *options))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.process.communicate()


class Reader(threading.Thread):
    """Reads a streamed completion of `prompt` in the background."""

    def __init__(self, address: str, prompt: str) -> None:
        super().__init__()
        self.address, self.prompt = address, prompt
        self.begun = threading.Event()
        self.text = ""
        self.start()
        assert self.begun.wait(10)

    def run(self) -> None:
        body = {"prompt": self.prompt, "stream": True, "max_tokens": 8000}
        cut = contextlib.suppress(httpx.RemoteProtocolError)
        with cut, httpx.stream("POST", f"{self.address}/v1/completions", json=body, timeout=20) as response:
            for part in response.iter_text():
                self.text += part
                self.begun.set()

    def result(self) -> tuple[list[dict[str, Any]], bool]:
        self.join(20)
        return events(self.text)


def test_a_first_signal_drains(server: Start) -> None:
    process = server()
    address = process.ready()
    reader = Reader(address, "short")
    process.signal()
    deadline = time.monotonic() + 5
    while httpx.get(f"{address}/health").status_code == 200 and time.monotonic() < deadline:
        time.sleep(0.01)
    refused = httpx.post(f"{address}/v1/completions", json={"prompt": "short"})
    assert refused.status_code == 503 and refused.headers["retry-after"] and "shutting down" in refused.text
    chunks, done = reader.result()
    assert done and len(chunks) == 50
    assert process.process.wait(5) == 0


def test_draining_has_a_limit(server: Start) -> None:
    process = server("--drain-s", "0.3")
    reader = Reader(process.ready(), "endless")
    process.signal(signal.SIGINT)
    chunks, done = reader.result()
    assert not done and "shutting down" in chunks[-1]["error"]["message"]
    assert process.process.wait(5) == 0


def test_a_second_signal_ends_it_at_once(server: Start) -> None:
    process = server()
    Reader(process.ready(), "endless")
    process.signal()
    time.sleep(0.3)
    assert process.process.poll() is None
    started = time.monotonic()
    process.signal()
    assert process.process.wait(5) == 128 + signal.SIGTERM and time.monotonic() - started < 1.0


def test_an_idle_server_ends_at_the_first_signal(server: Start) -> None:
    process = server()
    address = process.ready()
    with httpx.Client() as client:  # its connection stays open
        assert client.get(f"{address}/health").status_code == 200
        process.signal()
        assert process.process.wait(5) == 0


def test_a_signal_while_loading(server: Start) -> None:
    process = server("--slow-start")
    process.signal()
    assert process.process.wait(5) == 128 + signal.SIGTERM


def test_an_engine_that_dies_ends_the_server(server: Start) -> None:
    process = server()
    chunks, done = Reader(process.ready(), "die").result()
    assert not done and "SIGKILL" in chunks[-1]["error"]["message"]
    assert process.process.wait(10) == 1


async def _never() -> Service:
    raise CheckpointError("never loaded")


@pytest.mark.parametrize(("setting", "value"), [
    ("max_queue", -1), ("max_body_bytes", 0), ("drain_s", -1.0), ("drain_s", float("nan")),
])
def test_numbers_that_cannot_work(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=setting):
        run(_never, ServerConfig(port=0, **{setting: value}))


def test_addresses_that_cannot_be_had() -> None:
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0.*--api-key"):
        run(_never, ServerConfig(host="0.0.0.0"))
    with pytest.raises(ConfigError, match="api_key"):
        run(_never, ServerConfig(api_key=("",)))
    for key in ("\udcff", " k", "a\nb"):
        with pytest.raises(ConfigError, match="api_key"):
            run(_never, ServerConfig(api_key=(key,)))
    with pytest.raises(ConfigError, match="70000"):
        run(_never, ServerConfig(port=70000))
    with pytest.raises(ConfigError, match="no-such-host"):
        run(_never, ServerConfig(host="no-such-host.invalid", api_key=("k",)))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1 port {port}: Address already in use"):
            run(_never, ServerConfig(port=port))


def test_a_port_that_is_lost_while_loading(tokenizer: Tokenizer) -> None:
    with bind("127.0.0.1", 0) as other:
        engine = ScriptedEngine(lambda request: ())

        async def start() -> Service:
            other.listen()
            return Service(engine, tokenizer, None)

        with pytest.raises(ConfigError, match="cannot listen"):
            run(start, ServerConfig(port=other.getsockname()[1]), announce=pytest.fail)
        assert engine.closed


def test_what_loading_raises_passes_through_and_signals_are_as_before() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(CheckpointError, match="never loaded"):
        run(_never, ServerConfig(port=0))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    with pytest.raises(CheckpointError, match="never loaded"):
        run(_never, ServerConfig(port=0, host="0.0.0.0", api_key=("k",)))


@pytest.mark.parametrize(("host", "loopback"), [
    ("127.0.0.1", True), ("127.3.2.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False),
    ("192.168.1.5", False), ("example.org", False), ("", False),
])
def test_is_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_url() -> None:
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert port and url("127.0.0.1", sock) == f"http://127.0.0.1:{port}"
        assert url("::1", sock) == f"http://[::1]:{port}"
