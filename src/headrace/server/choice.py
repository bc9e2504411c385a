"""One completion in the making: the engine's tokens on one side, text on the other."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.engine.client import Engine
from headrace.engine.detokenizer import Detokenizer
from headrace.engine.metrics import Metrics
from headrace.errors import EngineUnavailableError
from headrace.server.errors import ApiError
from headrace.types import FinishReason, Request, TokenEvent, TokenLogprob

if TYPE_CHECKING:
    from headrace.engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the client gave it (for echo) and as the engine takes it."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """News of a choice: text that can be shown now, and the log-probabilities of new tokens if they were asked for.

    `text` may be empty while a character or a possible stop string is incomplete. offsets: where each of the tokens begins in
    the choice's text. prompt_logprobs come once, with the first piece.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...]
    offsets: tuple[int, ...]
    prompt_logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None
    stop_reason: int | str | None


class Choice:
    """Made when its request has been submitted; `index` is its place in the response.

    completion_tokens and cached_tokens grow as pieces are read. `scores_only`: the one token that the engine draws is dropped.
    """

    def __init__(
        self, index: int, prompt: Prompt, request: Request, engine: Engine, tokenizer: Tokenizer, metrics: Metrics, *,
        skip_special: bool, scores_only: bool,
    ) -> None:
        self.index = index
        self.prompt = prompt
        self.completion_tokens = 0
        self.cached_tokens = 0
        self._id = request.id
        self._arrival_s = request.arrival_s
        self._engine = engine
        self._metrics = metrics
        self._scores_only = scores_only
        self._detokenizer = Detokenizer(tokenizer, request.params, skip_special=skip_special)
        self._events = engine.submit(request)
        self._finished = False

    async def pieces(self) -> AsyncIterator[Piece]:
        """Until one has a finish_reason. Raises ApiError when the engine fails or the request was cancelled elsewhere."""
        last_s = 0.0
        async for event in self._events:
            self._check(event)
            last_s = self._measure(event, last_s)
            piece = self._score(event) if self._scores_only else self._detokenize(event)
            if piece.finish_reason is not None:
                self._finish(event, piece.finish_reason)
                yield piece
                return
            yield piece

    def cancel(self) -> None:
        """Let the engine drop the request, unless it has ended."""
        if not self._finished:
            self._finished = True
            self._metrics.finished("cancelled", time.monotonic() - self._arrival_s)
            self._engine.cancel(self._id)

    def _check(self, event: TokenEvent) -> None:
        if event.finish_reason == "cancelled":
            raise EngineUnavailableError("the request was cancelled: the server is shutting down")
        if event.finish_reason == "error":
            self._finish(event, "error")
            message = event.error or "the engine failed"
            if self._engine.heartbeat_age_s() == float("inf"):
                raise EngineUnavailableError(message)
            raise ApiError(500, message, code="engine_error")

    def _measure(self, event: TokenEvent, last_s: float) -> float:
        now_s = time.monotonic()
        if last_s:
            self._metrics.tokens(len(event.tokens), now_s - last_s)
        else:
            self._metrics.first_token(now_s - self._arrival_s)
            self._metrics.tokens(len(event.tokens) - 1, 0.0)
        return now_s

    def _detokenize(self, event: TokenEvent) -> Piece:
        delta = self._detokenizer.push(event)
        self.completion_tokens += len(delta.tokens)
        self.cached_tokens = event.cached_tokens or self.cached_tokens
        return Piece(delta.text, delta.logprobs, delta.offsets, event.prompt_logprobs, delta.finish_reason, delta.stop_reason)

    def _score(self, event: TokenEvent) -> Piece:
        self.cached_tokens = event.cached_tokens
        return Piece("", (), (), event.prompt_logprobs, "length", None)

    def _finish(self, event: TokenEvent, reason: FinishReason) -> None:
        self._finished = True
        self._metrics.finished(reason, time.monotonic() - self._arrival_s)
        if event.finish_reason is None:  # a stop string: only the front knows
            self._engine.cancel(self._id)
