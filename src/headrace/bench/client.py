"""One streamed request to an OpenAI-compatible server, measured.

What is timed is what a user sees: a chunk counts when it has text (of the answer, of its reasoning, or of a tool call), so
the chunk that only announces the assistant's role is not a first token. How many tokens there are is the server's to say, in
the usage at the end of the stream: a chunk may have several tokens, and a token no text.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.bench.exchange import ConnectError, DisconnectedError, Response, Server, error_message, exchange, get
from headrace.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class Failure:
    """kind: "connect", "http 429" (or another status), "disconnected", "timeout", "error event", "malformed", "no usage" or
    "not sent"."""

    kind: str
    message: str


@dataclass(slots=True)
class Answer:
    """What came back for one request. Times are in seconds on the clock of time.perf_counter.

    sent_s: just before its connection was opened. chunks_s: when each chunk with text came. last_s: when the last of them, or
    the finish reason, came. ended_s: when [DONE] came. Token counts are the server's; nothing but the times of an answer with
    a `failure` means anything.
    """

    sent_s: float
    chunks_s: list[float] = field(default_factory=list)
    last_s: float | None = None
    ended_s: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    failure: Failure | None = None
    text: str = ""

    @property
    def e2e_s(self) -> float:
        return self.ended_s - self.sent_s

    @property
    def ttft_s(self) -> float | None:
        """None if no text came."""
        return self.chunks_s[0] - self.sent_s if self.chunks_s else None

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first; None for less than two tokens, and if all text came in one chunk or at one time."""
        tokens = self.completion_tokens or 0
        if tokens < 2 or len(self.chunks_s) < 2 or self.last_s is None or self.last_s == self.chunks_s[0]:
            return None
        return (self.last_s - self.chunks_s[0]) / (tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Between neighbouring chunks."""
        return [later - earlier for earlier, later in zip(self.chunks_s, self.chunks_s[1:], strict=False)]


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


async def ask(server: Server, path: str, body: Mapping[str, Any], timeout_s: float) -> Answer:
    """Stream the answer to `body`, sent to `path`. Whatever goes wrong is the answer's `failure`."""
    whole = msgspec.json.encode({**body, "stream": True, "stream_options": {"include_usage": True}})
    reader = _Reader(Answer(time.perf_counter()))
    answer = reader.answer
    try:
        async with asyncio.timeout(timeout_s):
            response = await exchange(server, "POST", path, whole, reader.take)
        answer.failure = reader.fault(response, "the stream ended without [DONE]")
    except TimeoutError:
        answer.failure = Failure("timeout", f"not answered within {timeout_s:g} s")
    except ConnectError as error:
        answer.failure = Failure("connect", str(error))
    except DisconnectedError as error:
        answer.failure = reader.fault(None, str(error))
    answer.ended_s = reader.done_s or time.perf_counter()
    answer.text = "".join(reader.texts)
    return answer


class _Reader:
    """Reads one response: server-sent events if it went well, an error's body if not."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.texts: list[str] = []
        self.done_s: float | None = None
        self._held = b""
        self._refusal = b""
        self._error: Failure | None = None
        self._decoder = msgspec.json.Decoder(_Chunk)

    def take(self, response: Response, arrived_s: float, data: bytes) -> None:
        if response.status != 200:
            self._refusal += data
            return
        *lines, self._held = (self._held + data).split(b"\n")
        for payload in _payloads(lines):
            if payload == b"[DONE]":
                self.done_s = arrived_s
            elif self._error is None:
                self._chunk(arrived_s, payload)

    def fault(self, response: Response | None, cut: str) -> Failure | None:
        """What is wrong with the answer. response: None if it broke off. cut: why there is no more, if there should be."""
        if response is not None and response.status != 200:
            return Failure(f"http {response.status}", error_message(self._refusal))
        if self._error is not None:
            return self._error
        if self.done_s is None:
            return Failure("disconnected", cut)
        if self.answer.completion_tokens is None:
            return Failure("no usage", "the stream has no usage, though stream_options.include_usage asked for it")
        return None

    def _chunk(self, arrived_s: float, payload: bytes) -> None:
        try:
            chunk = self._decoder.decode(payload)
        except msgspec.MsgspecError as error:
            self._error = Failure("malformed", f"{error}: {payload[:100]!r}")
            return
        if chunk.error is not None:
            self._error = Failure("error event", error_message(payload))
        for choice in chunk.choices:
            self._choice(arrived_s, choice)
        if chunk.usage is not None:
            self._usage(chunk.usage)

    def _choice(self, arrived_s: float, choice: _Choice) -> None:
        answer, delta = self.answer, choice.delta
        text = choice.text or (delta.content if delta else None)
        if text:
            self.texts.append(text)
        if text or (delta and (delta.reasoning_content or delta.reasoning or delta.tool_calls)):
            answer.chunks_s.append(arrived_s)
            answer.last_s = arrived_s
        if choice.finish_reason is not None:
            answer.finish_reason = choice.finish_reason
            answer.last_s = arrived_s

    def _usage(self, usage: _Usage) -> None:
        self.answer.prompt_tokens = usage.prompt_tokens
        self.answer.completion_tokens = usage.completion_tokens
        details = usage.prompt_tokens_details
        self.answer.cached_tokens = details.cached_tokens if details else None


def _payloads(lines: list[bytes]) -> Iterator[bytes]:
    """What follows `data:`; comments, event names and empty lines are skipped."""
    for line in lines:
        if line.startswith(b"data:"):
            yield line[5:].strip()


@dataclass(frozen=True, slots=True)
class Served:
    """A model of a server's list. vocab_size: token ids that it has, where the server says so."""

    name: str
    vocab_size: int | None


async def served_model(server: Server, name: str | None = None) -> Served:
    """The model of that name, or the first one that is listed. Raises HeadraceError if the server is none, or not
    OpenAI-compatible.
    """
    try:
        response, body = await get(server, "/v1/models")
    except (ConnectError, DisconnectedError) as error:
        raise HeadraceError(f"no server at {server.url}: {error}") from None
    if response.status != 200:
        raise HeadraceError(f"{server.url}/v1/models: {error_message(body)} (HTTP {response.status})")
    try:
        listed = msgspec.json.decode(body)["data"]
        first = next((each for each in listed if each["id"] == name), listed[0] if name is None else {"id": name})
        vocab_size = first.get("vocab_size")
        return Served(str(first["id"]), vocab_size if isinstance(vocab_size, int) and vocab_size > 0 else None)
    except (msgspec.MsgspecError, LookupError, TypeError, AttributeError):
        raise HeadraceError(f"{server.url} does not answer as an OpenAI-compatible server") from None
