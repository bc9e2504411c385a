"""The way of a request's events to its reader: never more than one event waits, however slow the reader is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from headrace.types import TokenEvent, TokenLogprob


class Mailbox:
    """Events of one request that its reader has not taken yet, merged into one: tokens and log-probabilities in order."""

    __slots__ = (
        "_accepted_tokens", "_cached_tokens", "_drafted_tokens", "_event", "_logprobs", "_prompt_logprobs", "_tokens", "_waiter"
    )

    def __init__(self) -> None:
        self._event: TokenEvent | None = None  # the newest; the lists hold what came before it
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: list[TokenLogprob] = []
        self._cached_tokens = 0
        self._drafted_tokens = self._accepted_tokens = 0
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: TokenEvent) -> None:
        if self._event is not None:
            self._tokens += self._event.tokens
            self._logprobs += self._event.logprobs
            self._prompt_logprobs += self._event.prompt_logprobs
            self._cached_tokens = max(self._cached_tokens, self._event.cached_tokens)
            self._drafted_tokens = max(self._drafted_tokens, self._event.drafted_tokens)
            self._accepted_tokens = max(self._accepted_tokens, self._event.accepted_tokens)
        self._event = event
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> TokenEvent:
        """The merged news, when there is some. One reader at a time."""
        while self._event is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._waiter = None
        event, self._event = self._event, None
        return self._merged(event) if self._tokens or self._prompt_logprobs or self._cached_tokens else event

    def _merged(self, last: TokenEvent) -> TokenEvent:
        merged = TokenEvent(
            last.request,
            (*self._tokens, *last.tokens),
            (*self._logprobs, *last.logprobs),
            (*self._prompt_logprobs, *last.prompt_logprobs),
            max(self._cached_tokens, last.cached_tokens),
            last.finish_reason,
            last.stop_reason,
            last.error,
            max(self._drafted_tokens, last.drafted_tokens),
            max(self._accepted_tokens, last.accepted_tokens),
        )
        self._tokens, self._logprobs, self._prompt_logprobs, self._cached_tokens = [], [], [], 0
        return merged


class EventStream(AsyncIterator[TokenEvent]):
    """What `submit` returns. It ends after the event with a finish_reason.

    A reader that goes away before (the iterator is closed or dropped, the task that waits on it is cancelled) calls `abandon`
    once. So a wait with a time limit must not cancel `__anext__`: wrap it in a task and use `asyncio.wait`.
    """

    def __init__(self, mailbox: Mailbox, abandon: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self._mailbox = mailbox
        self._abandon = abandon
        self._loop = loop
        self._ended = False

    async def __anext__(self) -> TokenEvent:
        if self._ended:
            raise StopAsyncIteration
        try:
            event = await self._mailbox.take()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        self._ended = event.finish_reason is not None
        return event

    async def aclose(self) -> None:
        """Stop reading: the request is cancelled unless it has ended."""
        if not self._ended:
            self._ended = True
            self._abandon()

    def __del__(self) -> None:
        # The collector may run in any thread, so the loop is asked to call back.
        if not self._ended and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._abandon)
