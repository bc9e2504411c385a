"""An engine without a model: a script says which tokens a request gets, and the test what goes wrong."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.engine.streams import EventStream, Mailbox
from headrace.errors import EngineUnavailableError, QueueFullError
from headrace.types import EngineInfo, EngineStats, FinishReason, Request, TokenEvent, TokenLogprob

Script = Callable[[Request], Sequence[int]]

INFO = EngineInfo(
    model="/models/scripted", device="cpu", dtype="float32", context=512, max_seqs=64, chunk_tokens=512, page_tokens=16,
    kv_pages=1024, vocab_size=267,
)


@dataclass
class _Running:
    request: Request
    mailbox: Mailbox
    task: asyncio.Task[None] | None = None


class ScriptedEngine:
    """Implements `engine.client.Engine`.

    script: a request's tokens, emitted `step_tokens` at a time with `step_s` between the steps; the message ends after an EOS
    or stop token ("stop"), after max_tokens, or with the script ("length"). Everything is recorded: `submitted`, `cancelled`
    (ids that were still running), `emitted` (tokens by id). Switches: `held` (no step is done until it is set False), `full`
    (submit raises), `stale_s` (age of the heartbeat), `capacity` (requests at once), `logprob` (of every
    chosen token; the alternatives follow 1 apart), `cached_tokens` (of every prompt), `die()`, `fail()`.
    """

    def __init__(
        self, script: Script, *, info: EngineInfo = INFO, step_tokens: int = 1, step_s: float = 0.0, capacity: int = 10**6
    ) -> None:
        self.info = info
        self.submitted: list[Request] = []
        self.cancelled: list[str] = []
        self.emitted: dict[str, int] = {}
        self.full = False
        self.stale_s = 0.0
        self.capacity = capacity
        self.logprob = -0.5
        self.cached_tokens = 0
        self.closed = False
        self._script = script
        self._step_tokens = step_tokens
        self._step_s = step_s
        self._running: dict[str, _Running] = {}
        self._free = asyncio.Event()
        self._free.set()
        self._death: str | None = None

    # engine.client.Engine

    def submit(self, request: Request) -> AsyncIterator[TokenEvent]:
        if self._death is not None:
            raise EngineUnavailableError(self._death)
        if self.full or len(self._running) >= self.capacity:
            raise QueueFullError("the engine holds as many requests as it accepts", retry_after_s=7)
        assert request.id not in self._running
        self.submitted.append(request)
        running = self._running[request.id] = _Running(request, Mailbox())
        running.task = asyncio.ensure_future(self._run(running))
        return EventStream(running.mailbox, lambda: self.cancel(request.id), asyncio.get_running_loop())

    def cancel(self, request_id: str) -> None:
        running = self._running.get(request_id)
        if running is None:
            return
        self.cancelled.append(request_id)
        self._end(running, TokenEvent(request_id, finish_reason="cancelled"))

    def stats(self) -> EngineStats:
        return EngineStats(requests_running=len(self._running), generation_tokens_total=sum(self.emitted.values()),
                           slots_used=len(self._running), slots_total=self.info.max_seqs, kv_pages_total=self.info.kv_pages)

    def heartbeat_age_s(self) -> float:
        return math.inf if self._death is not None else self.stale_s

    async def close(self) -> None:
        self.closed = True
        self.die("the engine was closed")

    # What tests do to it

    @property
    def running(self) -> tuple[str, ...]:
        return tuple(self._running)

    @property
    def held(self) -> bool:
        return not self._free.is_set()

    @held.setter
    def held(self, held: bool) -> None:
        if held:
            self._free.clear()
        else:
            self._free.set()

    def die(self, reason: str = "the engine process was ended by signal SIGKILL") -> None:
        self._death = reason
        for running in tuple(self._running.values()):
            self._end(running, TokenEvent(running.request.id, finish_reason="error", error=reason))

    def fail(self, request_id: str, reason: str) -> None:
        """Only this request ends in an error."""
        self._end(self._running[request_id], TokenEvent(request_id, finish_reason="error", error=reason))

    # Emission

    def _end(self, running: _Running, event: TokenEvent) -> None:
        self._running.pop(running.request.id, None)
        if running.task is not None:
            running.task.cancel()
        running.mailbox.put(event)

    async def _run(self, running: _Running) -> None:
        request = running.request
        for event in self._events(request):
            await self._free.wait()
            await asyncio.sleep(self._step_s)
            if event.finish_reason is not None:
                del self._running[request.id]
            self.emitted[request.id] = self.emitted.get(request.id, 0) + len(event.tokens)
            running.mailbox.put(event)

    def _events(self, request: Request) -> Iterator[TokenEvent]:
        tokens, reason, stop = _message(request, tuple(self._script(request)))
        for start in range(0, max(1, len(tokens)), self._step_tokens):
            step = tokens[start : start + self._step_tokens]
            last = start + self._step_tokens >= len(tokens)
            yield TokenEvent(
                request.id,
                step,
                logprobs=() if request.params.logprobs is None else self._logprobs(step, request.params.logprobs),
                prompt_logprobs=() if start or request.params.prompt_logprobs is None
                else self._logprobs(request.prompt[1:], request.params.prompt_logprobs),
                cached_tokens=min(self.cached_tokens, len(request.prompt)),
                finish_reason=reason if last else None,
                stop_reason=stop if last else None,
            )

    def _logprobs(self, tokens: Sequence[int], count: int) -> tuple[TokenLogprob, ...]:
        return tuple(
            TokenLogprob(token, self.logprob, tuple(
                ((token + rank) % self.info.vocab_size, self.logprob - rank) for rank in range(count)
            ))
            for token in tokens
        )


def _message(request: Request, script: tuple[int, ...]) -> tuple[tuple[int, ...], FinishReason, int | None]:
    """Tokens of the script that the message has, what ends it, and the stop token."""
    ends = {*request.eos_ids, *request.params.stop_token_ids}
    for count, token in enumerate(script[: request.max_tokens], 1):
        if token in ends and count > request.params.min_tokens:
            return script[:count], "stop", token
    return script[: request.max_tokens], "length", None
