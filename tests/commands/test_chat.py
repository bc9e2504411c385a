from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headrace.commands.chat import chat
from headrace.commands.chat_client import ChatClient
from headrace.errors import ConfigError, HeadraceError


class FakeServer(ThreadingHTTPServer):
    """Answers each chat with "echo: <last message>", a word at a time; `endless` never stops by itself."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict[str, Any]] = []
        self.failure: tuple[int, bytes] | None = None
        self.tail = b"data: [DONE]\n\n"
        self.endless = False
        self.hung_up = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != "Bearer k":
            self._reply(401, b'{"error": {"message": "wrong\\nAPI key", "type": "x"}}')
        else:
            self._reply(200, json.dumps({"object": "list", "data": [{"id": "tiny"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if self.server.failure:
            self._reply(*self.server.failure)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b": keep-alive\n\n")
        self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        try:
            for text in self._texts(body):
                self._event({"choices": [{"delta": {"content": text}, "finish_reason": None}]})
        except OSError:
            self.server.hung_up.set()
            return
        self._event({"choices": [], "usage": {}})
        self.wfile.write(self.server.tail)

    def _texts(self, body: dict[str, Any]) -> Iterator[str]:
        yield from ("echo:", f" {body['messages'][-1]['content']}", "\x1b[2J")
        while self.server.endless:
            time.sleep(0.01)
            yield " x"

    def _event(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def pipe(server: FakeServer, monkeypatch: pytest.MonkeyPatch, text: str, **options: Any) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    chat(ChatClient(server.url, "k"), system=options.pop("system", None), sampling=options)


def test_each_line_of_a_pipe_is_a_message(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(server, monkeypatch, "one\n\ntwo\n/reset\nthree\n", system="be brief", temperature=0.0)
    assert capsys.readouterr().out == "echo: one\x1b[2J\necho: two\x1b[2J\necho: three\x1b[2J\n"
    histories = [[m["content"] for m in body["messages"]] for body in server.bodies]
    assert histories == [
        ["be brief", "one"],
        ["be brief", "one", "echo: one\x1b[2J", "two"],
        ["be brief", "three"],
    ]
    assert all(b["stream"] and b["model"] == "tiny" and b["temperature"] == 0.0 for b in server.bodies)


def test_a_server_under_a_path_is_found(server: FakeServer) -> None:
    assert ChatClient(server.url + "/v1/", "k").model() == "tiny"
    assert ChatClient(server.url.removeprefix("http://"), "k").model() == "tiny"


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ((400, b'{"error": {"message": "prompt is too\\nlong", "type": "x"}}'), r"^prompt is too long \(HTTP 400\)$"),
        ((502, b"<html>"), "^HTTP 502 Bad Gateway$"),
    ],
)
def test_a_refusal_ends_a_pipe_with_one_line(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, failure: tuple[int, bytes], words: str
) -> None:
    server.failure = failure
    with pytest.raises(HeadraceError, match=words):
        pipe(server, monkeypatch, "one\n")


@pytest.mark.parametrize(
    ("tail", "words"),
    [(b'data: {"error": {"message": "the engine died"}}\n\n', "the engine died"), (b"", "ended the answer early")],
)
def test_an_answer_that_breaks_off_is_an_error(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, tail: bytes, words: str
) -> None:
    server.tail = tail
    with pytest.raises(HeadraceError, match=words):
        pipe(server, monkeypatch, "one\n")


def test_a_wrong_key_no_server_and_a_bad_url_are_told(server: FakeServer) -> None:
    with pytest.raises(HeadraceError, match="^wrong API key"):
        ChatClient(server.url, None).model()
    with pytest.raises(HeadraceError, match="no server at http://127.0.0.1:1 .*headrace serve"):
        ChatClient("http://127.0.0.1:1", None).model()
    with pytest.raises(ConfigError, match="--url"):
        ChatClient("ftp://x", None)


def terminal(server: FakeServer, monkeypatch: pytest.MonkeyPatch, lines: list[str | type[BaseException]]) -> str:
    """What a terminal shows when these lines are typed; an exception stands for its key, Ctrl-C or Ctrl-D."""
    screen, typed = Terminal(), iter(lines)

    def type_line(prompt: str) -> str:
        line = next(typed)
        if not isinstance(line, str):
            raise line
        return line

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("builtins.input", type_line)
    chat(ChatClient(server.url, "k"), system=None, sampling={})
    return screen.getvalue()


def test_a_terminal_shows_failures_and_goes_on(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.failure = (429, b'{"error": {"message": "the queue is full"}}')
    assert "headrace: the queue is full (HTTP 429)\n" in terminal(server, monkeypatch, ["one", EOFError])
    server.failure = None
    screen = terminal(server, monkeypatch, [KeyboardInterrupt, "two", EOFError])
    assert screen.splitlines()[1:] == ["", "Ctrl-D leaves.", "echo: two[2J", ""]  # no escape sequence gets through
    assert server.bodies[-1]["messages"] == [{"role": "user", "content": "two"}]


@contextmanager
def killed(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Whatever happens, the process does not outlive the block."""
    try:
        yield
    finally:
        process.kill()


def test_ctrl_c_in_a_real_terminal_stops_the_answer_and_hangs_up(server: FakeServer) -> None:
    server.endless = True
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "chat", "--url", server.url, "--api-key", "k"]
    not_ignored = "signal.signal(signal.SIGINT, signal.SIG_DFL)"  # as it is for what a shell runs in the background
    spawn = f"import pty, signal, sys; {not_ignored}; sys.exit(pty.spawn({command!r}))"
    run = subprocess.Popen([sys.executable, "-c", spawn], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with run as running, killed(running):
        assert running.stdin is not None
        assert running.stdout is not None
        seen = b""
        for awaited, key in ((b"> ", b"hello\r"), (b"echo: hello[2J x x", b"\x03"), (b"[stopped]\r\n> ", b"\x04")):
            while awaited not in seen:
                news = running.stdout.read1()
                assert news, f"the command ended after {seen!r}"
                seen += news
            running.stdin.write(key)
            running.stdin.flush()
        assert server.hung_up.wait(5)
        assert running.wait(10) == 0
