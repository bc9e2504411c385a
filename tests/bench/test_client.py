"""One request measured: exact figures from scripted times, and what goes wrong by kind."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.support.live_front import LiveFront
from tests.support.raw_server import DONE, STREAM, RawServer, event, text_event, usage_event

from headrace.bench import client
from headrace.bench.client import Answer, ask, served_model
from headrace.bench.exchange import OnBody, Response, Server
from headrace.engine.tokenizer import Tokenizer
from headrace.errors import HeadraceError

SENT_S = 100.0


async def heard(monkeypatch: pytest.MonkeyPatch, parts: Sequence[tuple[float, bytes]], status: int = 200) -> Answer:
    """The answer to a request sent at SENT_S, whose response comes in `parts` at the times given."""

    async def exchange(server: Server, method: str, path: str, body: bytes, on_body: OnBody) -> Response:
        response = Response(status)
        for arrived_s, data in parts:
            on_body(response, arrived_s, data)
        return response

    monkeypatch.setattr(client, "exchange", exchange)
    monkeypatch.setattr(client.time, "perf_counter", lambda: SENT_S)
    return await ask(Server("x", 1), "/v1/completions", {}, 1.0)


async def test_times_and_counts_of_several_tokens_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = await heard(monkeypatch, [
        (100.5, text_event("a few ")), (100.6, text_event("tokens at ")), (100.8, text_event("once", "length")),
        (100.9, usage_event(7, 10, 3)), (101.0, DONE),
    ])  # fmt: skip
    assert answer.failure is None
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (7, 10, 3)
    assert answer.ttft_s == pytest.approx(0.5)
    assert answer.tpot_s == pytest.approx(0.3 / 9), "from the first chunk to the last, by the server's count"
    assert answer.gaps_s == pytest.approx([0.1, 0.2])
    assert answer.e2e_s == pytest.approx(1.0)
    assert (answer.text, answer.finish_reason) == ("a few tokens at once", "length")


async def test_events_cut_anywhere_count_when_they_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = b": comment\n\nevent: x\n" + text_event("é") + text_event("b").replace(b"\n", b"\r\n") + usage_event(1, 2) + DONE
    answer = await heard(monkeypatch, [(101.0 + at / 1000, stream[at : at + 1]) for at in range(len(stream))])
    assert answer.failure is None
    ends = [at for at in range(len(stream)) if stream[at : at + 1] == b"\n" and stream[:at].rstrip().endswith(b"}")]
    firsts = [ends[0], next(at for at in ends if at > ends[0] + 2)]
    assert answer.chunks_s == pytest.approx([101.0 + at / 1000 for at in firsts])


def chat_event(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


async def test_a_chat_is_timed_by_what_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = await heard(monkeypatch, [
        (100.1, chat_event({"role": "assistant", "content": ""})),
        (100.2, chat_event({"reasoning_content": "hm"})), (100.3, chat_event({"reasoning": "hm"})),
        (100.4, chat_event({"tool_calls": [{"index": 0}]})), (100.5, chat_event({"content": "yes"})),
        (100.6, chat_event({"content": ""})), (100.7, chat_event({}, "stop")), (100.8, usage_event(1, 6)), (100.8, DONE),
    ])  # fmt: skip
    assert answer.chunks_s == [100.2, 100.3, 100.4, 100.5]
    assert answer.ttft_s == pytest.approx(0.2)
    assert answer.tpot_s == pytest.approx(0.5 / 5), "the last token is the one that ended it"
    assert answer.text == "yes"


@pytest.mark.parametrize(
    ("parts", "tokens"),
    [
        ([text_event("all of it", "length")], 5), ([text_event("all of it"), text_event("", "length")], 5),
        ([text_event("all of "), text_event("it", "stop")], 1), ([text_event("all of ") + text_event("it", "stop")], 5),
        ([text_event("", "stop")], 3),
    ],
)  # fmt: skip
async def test_no_time_per_token_without_two_times_of_text(
    monkeypatch: pytest.MonkeyPatch, parts: list[bytes], tokens: int
) -> None:
    timed = [(100.5 + at, part) for at, part in enumerate(parts)]
    answer = await heard(monkeypatch, [*timed, (103.0, usage_event(1, tokens) + DONE)])
    assert answer.failure is None and answer.tpot_s is None


@pytest.mark.parametrize(
    ("parts", "kind", "words"),
    [
        ([text_event("a"), event({"error": {"message": "out of\nluck"}})], "error event", "out of luck"),
        ([text_event("a"), event({"error": "out of luck"}), usage_event(1, 1), DONE], "error event", "out of luck"),
        ([text_event("a"), usage_event(1, 1)], "disconnected", r"without \[DONE\]"),
        ([text_event("a"), DONE], "no usage", "include_usage"),
        ([text_event("a"), event("{broken"), DONE], "malformed", "{broken"),
        ([event({"choices": 1}), usage_event(1, 1), DONE], "malformed", "choices"),
        ([], "disconnected", r"without \[DONE\]"),
    ],
)
async def test_streams_that_fail(monkeypatch: pytest.MonkeyPatch, parts: list[bytes], kind: str, words: str) -> None:
    answer = await heard(monkeypatch, [(101.0, part) for part in parts])
    assert answer.failure is not None
    assert answer.failure.kind == kind
    assert re.search(words, answer.failure.message)


async def test_a_refusal_is_told_with_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = await heard(monkeypatch, [(100.1, b'{"error": {"mess'), (100.2, b'age": "full"}}')], status=429)
    assert answer.failure == client.Failure("http 429", "full")


async def test_failures_of_the_connection() -> None:
    script: list[tuple[float, bytes]] = [(0.0, STREAM + text_event("a"))]
    async with RawServer(lambda head, body: script) as server:
        answer = await ask(server.address, "/v1/completions", {}, 10.0)
        assert answer.failure is not None and answer.failure.kind == "disconnected"
        script[0] = (0.0, STREAM.replace(b"\r\n\r\n", b"\r\ncontent-length: 10000\r\n\r\n") + text_event("a"))
        answer = await ask(server.address, "/v1/completions", {}, 10.0)
        assert answer.failure is not None and answer.failure.kind == "disconnected" and "early" in answer.failure.message
        script.append((5.0, b""))
        answer = await ask(server.address, "/v1/completions", {}, 0.2)
        assert answer.failure == client.Failure("timeout", "not answered within 0.2 s")
        assert len(answer.chunks_s) == 1 and 0.15 < answer.e2e_s < 3
    answer = await ask(server.address, "/v1/completions", {}, 10.0)
    assert answer.failure is not None and answer.failure.kind == "connect"


async def test_an_error_event_before_the_connection_breaks_is_the_reason() -> None:
    head = STREAM.replace(b"\r\n\r\n", b"\r\ncontent-length: 10000\r\n\r\n")
    async with RawServer(lambda *request: [(0.0, head + event({"error": "no luck"}))]) as server:
        answer = await ask(server.address, "/v1/completions", {}, 10.0)
    assert answer.failure == client.Failure("error event", "no luck")


async def test_chunks_are_timed_when_they_come() -> None:
    pauses = [0.1, 0.05, 0.05, 0.2, 0.05, 0.05, 0.05, 0.05]
    parts = [(0.0, STREAM), *((pause, text_event("x")) for pause in pauses), (0.0, usage_event(1, len(pauses)) + DONE)]
    async with RawServer(lambda head, body: parts) as server:
        answer = await ask(server.address, "/v1/completions", {"prompt": "hi"}, 10.0)
    assert answer.failure is None
    written_s = server.written_s[1:-1]
    delays = [seen - written for seen, written in zip(answer.chunks_s, written_s, strict=True)]
    assert min(delays) > 0 and statistics.median(delays) < 0.01, "nothing is seen before it is sent, and not much later"
    assert answer.ttft_s is not None and 0.1 <= answer.ttft_s < 0.2
    assert answer.tpot_s == pytest.approx((written_s[-1] - written_s[0]) / 7, rel=0.1)
    assert answer.gaps_s == pytest.approx([b - a for a, b in zip(written_s, written_s[1:], strict=False)], abs=0.02)
    (_, body), = server.requests
    assert json.loads(body) == {"prompt": "hi", "stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("step_tokens", [1, 4])
async def test_headrace_is_counted_right(tokenizer: Tokenizer, route: str, step_tokens: int) -> None:
    async with LiveFront(tokenizer, step_tokens=step_tokens, step_s=0.02) as front:
        front.emits(front.bytewise("abcdefghijklmnopqrst"))
        front.engine.cached_tokens = 1
        given = {"prompt": "hi"} if route == "/v1/completions" else {"messages": [{"role": "user", "content": "hi"}]}
        answer = await ask(Server.at(front.url), route, {**given, "max_tokens": 20, "ignore_eos": True}, 10.0)
    assert answer.failure is None
    assert (answer.completion_tokens, answer.text, answer.cached_tokens) == (20, "abcdefghijklmnopqrst", 1)
    assert answer.prompt_tokens == len(front.engine.submitted[0].prompt)
    steps = 20 // step_tokens
    assert len(answer.chunks_s) == steps
    assert answer.ttft_s is not None and answer.tpot_s is not None and answer.last_s is not None
    assert answer.ttft_s >= 0.0199
    assert answer.tpot_s == pytest.approx((answer.last_s - answer.chunks_s[0]) / 19)
    assert 0.02 * (steps - 1) * 0.9 < answer.tpot_s * 19 < 0.02 * (steps - 1) + 0.5
    assert 0.015 < statistics.median(answer.gaps_s) < 0.04


async def test_the_model_that_is_served(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer) as front:
        served = await served_model(Server.at(front.url))
        assert (served.name, served.vocab_size) == (front.state.model, front.state.engine.info.vocab_size)
        address = Server.at(front.url)
    with pytest.raises(HeadraceError, match="no server at http://127.0.0.1"):
        await served_model(address)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b'HTTP/1.1 401 No\r\n\r\n{"error": {"message": "no key"}}', r"no key \(HTTP 401\)"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"data": []}', "OpenAI-compatible"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "OpenAI-compatible"),
    ],
)
async def test_servers_without_a_model(answer: bytes, words: str) -> None:
    async with RawServer(lambda head, body: [(0.0, answer)]) as server:
        with pytest.raises(HeadraceError, match=words):
            await served_model(server.address)
