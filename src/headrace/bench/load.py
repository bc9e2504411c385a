"""Puts load on a server: users who each wait for their answers, or requests that come whether it keeps up or not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.bench.client import Answer, Failure, ask
from headrace.bench.exchange import Server
from headrace.bench.workload import Conversation


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a run and its answer. conversation, turn: which one, from 0. max_tokens: what it asked for."""

    conversation: int
    turn: int
    max_tokens: int | None
    answer: Answer


@dataclass(frozen=True, slots=True)
class Sender:
    """How requests are sent. fields: what every request's body has, where the workload says nothing else."""

    server: Server
    fields: Mapping[str, Any]
    timeout_s: float

    async def hold(self, number: int, conversation: Conversation) -> list[Asked]:
        """All requests of a conversation, one after the other. Those after one that failed are not sent, and counted."""
        asked: list[Asked] = []
        texts: list[str] = []
        failed = False
        for number_of_turn, turn in enumerate(conversation.turns):
            if failed:
                answer = _not_sent()
            else:
                body = {**self.fields, **conversation.body(texts)}
                answer = await ask(self.server, conversation.path, body, self.timeout_s)
            failed = answer.failure is not None
            texts.append(answer.text)
            asked.append(Asked(number, number_of_turn, turn.fields.get("max_tokens"), answer))
        return asked


def _not_sent() -> Answer:
    now_s = time.perf_counter()
    return Answer(now_s, ended_s=now_s, failure=Failure("not sent", "an earlier request of its conversation failed"))


async def with_users(sender: Sender, conversations: Sequence[Conversation], users: int) -> list[Asked]:
    """`users` at a time, each taking the next conversation when its last one is over."""
    asked: list[Asked] = []
    waiting = iter(enumerate(conversations))

    async def user() -> None:
        for number, conversation in waiting:
            asked.extend(await sender.hold(number, conversation))

    async with asyncio.TaskGroup() as group:
        for _ in range(users):
            group.create_task(user())
    return asked


async def at_times(
    sender: Sender, conversations: Sequence[Conversation], times_s: Sequence[float]
) -> tuple[list[Asked], list[float]]:
    """Each conversation begins at its time, from now on; also returns by how much each began late, in seconds."""
    asked: list[Asked] = []
    late_s: list[float] = []

    async def begin(number: int, conversation: Conversation) -> None:
        asked.extend(await sender.hold(number, conversation))

    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number, (conversation, due_s) in enumerate(zip(conversations, times_s, strict=True)):
            await asyncio.sleep(max(0.0, began_s + due_s - time.perf_counter()))
            late_s.append(time.perf_counter() - began_s - due_s)
            group.create_task(begin(number, conversation))
    return asked, late_s
