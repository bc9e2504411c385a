"""A request's events gathered into a Completion."""

from __future__ import annotations

from headrace.engine.detokenizer import Detokenizer
from headrace.engine.tokenizer import Tokenizer
from headrace.types import Completion, FinishReason, Request, TokenEvent, TokenLogprob


class Collector:
    """One completion in the making; `index` is its place among the choices of its prompt."""

    def __init__(self, request: Request, index: int, tokenizer: Tokenizer) -> None:
        self.request = request
        self._index = index
        self._detokenizer = Detokenizer(tokenizer, request.params)
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: list[TokenLogprob] = []
        self._cached_tokens = 0
        self._drafted_tokens = self._accepted_tokens = 0
        self._finish_reason: FinishReason | None = None
        self._stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        return self._finish_reason is not None

    def push(self, event: TokenEvent) -> None:
        """Take the request's next event. Once it is `finished`, by the event or by a stop string, more change nothing."""
        if self.finished:
            return
        delta = self._detokenizer.push(event)
        self._text.append(delta.text)
        self._tokens += delta.tokens
        self._logprobs += delta.logprobs
        self._prompt_logprobs += event.prompt_logprobs
        self._cached_tokens = max(self._cached_tokens, event.cached_tokens)
        self._drafted_tokens = max(self._drafted_tokens, event.drafted_tokens)
        self._accepted_tokens = max(self._accepted_tokens, event.accepted_tokens)
        self._finish_reason, self._stop_reason = delta.finish_reason, delta.stop_reason

    def completion(self) -> Completion:
        """What was gathered; the request has finished."""
        assert self._finish_reason is not None
        params = self.request.params
        return Completion(
            text="".join(self._text),
            tokens=tuple(self._tokens),
            finish_reason=self._finish_reason,
            prompt_tokens=len(self.request.prompt),
            index=self._index,
            stop_reason=self._stop_reason,
            logprobs=None if params.logprobs is None else tuple(self._logprobs),
            # Nothing comes before the first token, so it has no log-probability.
            prompt_logprobs=None if params.prompt_logprobs is None else (None, *self._prompt_logprobs),
            cached_tokens=self._cached_tokens,
            drafted_tokens=self._drafted_tokens,
            accepted_tokens=self._accepted_tokens,
        )
