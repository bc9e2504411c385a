"""Streams: order, merging for slow readers, and what a reader that leaves causes."""

from __future__ import annotations

import asyncio
import gc

import pytest

from headrace.engine.streams import EventStream, Mailbox
from headrace.types import TokenEvent, TokenLogprob


def stream() -> tuple[Mailbox, EventStream, list[str]]:
    mailbox, abandoned = Mailbox(), []
    return mailbox, EventStream(mailbox, lambda: abandoned.append("gone"), asyncio.get_running_loop()), abandoned


def logprob(token: int) -> TokenLogprob:
    return TokenLogprob(token, -float(token))


async def test_a_fast_reader_gets_every_event_as_it_came():
    mailbox, reader, abandoned = stream()
    events = [TokenEvent("r", (i,), finish_reason="stop" if i == 4 else None) for i in range(5)]
    task = asyncio.create_task(collect(reader))
    for event in events:
        mailbox.put(event)
        await asyncio.sleep(0.001)
    assert await task == events
    with pytest.raises(StopAsyncIteration):
        await anext(reader)
    del reader
    assert abandoned == []


async def collect(reader: EventStream) -> list[TokenEvent]:
    return [event async for event in reader]


async def test_a_slow_reader_gets_one_merged_event():
    mailbox, reader, _ = stream()
    mailbox.put(TokenEvent("r", (1,), (logprob(1),), (logprob(8), logprob(9)), cached_tokens=16))
    mailbox.put(TokenEvent("r", (2, 3), (logprob(2), logprob(3)), drafted_tokens=5, accepted_tokens=1))
    mailbox.put(TokenEvent("r", (4,), (logprob(4),), finish_reason="stop", stop_reason=4))
    assert await collect(reader) == [
        TokenEvent("r", (1, 2, 3, 4), tuple(map(logprob, (1, 2, 3, 4))), (logprob(8), logprob(9)), 16, "stop", 4, None, 5, 1)
    ]


async def test_merging_starts_anew_after_each_read():
    mailbox, reader, _ = stream()
    for tokens in ((1,), (2,)):
        mailbox.put(TokenEvent("r", tokens))
    assert (await anext(reader)).tokens == (1, 2)
    mailbox.put(TokenEvent("r", (3,), finish_reason="error", error="why"))
    assert await anext(reader) == TokenEvent("r", (3,), finish_reason="error", error="why")


async def test_a_cancelled_task_abandons_the_request():
    _, reader, abandoned = stream()
    task = asyncio.create_task(collect(reader))
    await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert abandoned == ["gone"]


async def test_closing_or_dropping_the_stream_abandons_the_request_once():
    _, reader, abandoned = stream()
    await reader.aclose()
    await reader.aclose()
    assert abandoned == ["gone"]
    with pytest.raises(StopAsyncIteration):
        await anext(reader)
    _, dropped, abandoned = stream()
    del dropped, reader
    gc.collect()
    await asyncio.sleep(0.001)
    assert abandoned == ["gone"]
