from __future__ import annotations

import json

import pytest
from tests.support.live_front import LiveFront
from tests.support.raw_server import DONE, STREAM, RawServer, event, text_event, usage_event

from headrace.bench.exchange import Server
from headrace.bench.load import Sender, at_times, with_users
from headrace.bench.summary import most_at_once
from headrace.bench.workload import CHAT, COMPLETIONS, Conversation, Turn
from headrace.engine.tokenizer import Tokenizer


def sender(server: Server) -> Sender:
    return Sender(server, {"model": "m"}, 60.0)


def single(number: int) -> Conversation:
    return Conversation(COMPLETIONS, (Turn({"prompt": [number], "max_tokens": 3}),))


async def test_users_wait_for_their_answers(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, step_s=0.01) as front:
        front.emits([70] * 3)
        wanted = Sender(Server.at(front.url), {"ignore_eos": True}, 60.0)
        asked = await with_users(wanted, [single(number) for number in range(20)], 4)
        submitted = front.engine.submitted
    assert sorted(each.conversation for each in asked) == list(range(20))
    assert sorted(request.prompt for request in submitted) == [(number,) for number in range(20)]
    assert all(request.params.ignore_eos for request in submitted)
    assert [each.answer.failure for each in asked] == [None] * 20
    assert {(each.answer.completion_tokens, each.max_tokens) for each in asked} == {(3, 3)}
    assert most_at_once(asked) == 4, "never more, and all of them busy"


async def test_arrivals_do_not_wait_for_answers() -> None:
    parts = [(0.0, STREAM), (0.4, text_event("x", "stop") + usage_event(1, 1) + DONE)]
    times_s = [0.0, 0.05, 0.1, 0.3]
    async with RawServer(lambda head, body: parts) as server:
        asked, late_s = await at_times(sender(server.address), [single(number) for number in range(4)], times_s)
    sent_s = sorted(each.answer.sent_s for each in asked)
    assert most_at_once(asked) == 4
    assert [at - sent_s[0] for at in sent_s] == pytest.approx(times_s, abs=0.05)
    assert len(late_s) == 4 and 0 <= min(late_s) and max(late_s) < 0.05


async def test_a_conversation_goes_on_from_what_was_answered() -> None:
    def script(head: str, body: bytes) -> list[tuple[float, bytes]]:
        delta = {"content": f"answer {len(json.loads(body)['messages'])}"}
        said = event({"choices": [{"delta": delta, "finish_reason": "stop"}]})
        return [(0.0, STREAM + said + usage_event(1, 2) + DONE)]

    talk = Conversation(CHAT, tuple(Turn({"max_tokens": 2 + at}, f"question {at}") for at in range(3)))
    async with RawServer(script) as server:
        asked = await with_users(sender(server.address), [talk], 1)
    bodies = [json.loads(body) for _, body in server.requests]
    assert [message["content"] for message in bodies[2]["messages"]] == [
        "question 0", "answer 1", "question 1", "answer 3", "question 2",
    ]  # fmt: skip
    assert [body["max_tokens"] for body in bodies] == [2, 3, 4] and bodies[0]["model"] == "m"
    assert [(each.conversation, each.turn, each.max_tokens) for each in asked] == [(0, 0, 2), (0, 1, 3), (0, 2, 4)]


async def test_what_follows_a_failure_is_counted_and_not_sent() -> None:
    def script(head: str, body: bytes) -> list[tuple[float, bytes]]:
        if len(json.loads(body)["messages"]) > 1:
            return [(0.0, b'HTTP/1.1 503 Busy\r\n\r\n{"error": {"message": "busy"}}')]
        return [(0.0, STREAM + usage_event(1, 2) + DONE)]

    talk = Conversation(CHAT, tuple(Turn({}, f"question {at}") for at in range(4)))
    async with RawServer(script) as server:
        asked = await with_users(sender(server.address), [talk, talk], 1)
    assert len(server.requests) == 4
    kinds = [each.answer.failure.kind if each.answer.failure else "" for each in asked]
    assert kinds == ["", "http 503", "not sent", "not sent"] * 2
