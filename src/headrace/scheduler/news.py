"""The one place where tokens enter a sequence, and what is told of it."""

from __future__ import annotations

from headrace.scheduler.sequence import Sequence
from headrace.types import FinishReason, Row, RowResult, TokenEvent, TokenLogprob


class News:
    """Events that nobody has been told yet, and tokens in all: of prompts whose answer has begun, of those the cached ones, and
    generated ones. verifies: whether the device sees messages end, and computes nothing more of them.
    """

    def __init__(self, *, verifies: bool) -> None:
        self._verifies = verifies
        self._events: list[TokenEvent] = []
        self.prompt_tokens = self.cached_tokens = self.generation_tokens = 0

    def drain(self) -> list[TokenEvent]:
        events, self._events = self._events, []
        return events

    def ended(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        """A request ends, not by its tokens."""
        self._events.append(TokenEvent(sequence.request.id, finish_reason=reason, error=error))

    def append(self, row: Row, result: RowResult, sequence: Sequence) -> bool:
        """What came of a row of a sequence whose message goes on. Returns whether it ends with it."""
        if result.prompt_logprobs:
            self._keep_prompt_logprobs(sequence, row.start, result)
        if not row.samples:
            if sequence.prefilling or sequence.in_flight > 0 or sequence.request.max_tokens > 0:
                return False
            self._count_prompt(sequence)
            self._tell(sequence, (), result, "length", None)
            return True
        if not sequence.prompt_counted:
            self._count_prompt(sequence)
        tokens, reason, stopped_by = self._accept(sequence, result.tokens)
        sequence.frozen = self._verifies and reason is not None
        self._tell(sequence, tokens, result, reason, stopped_by)
        return reason is not None

    def append_unheard(self, result: RowResult, sequence: Sequence) -> None:
        """What came of a row that was in flight when its message ended is nobody's, but for the cache."""
        if not sequence.frozen:
            request, tokens = sequence.request, result.tokens
            sequence.output.extend(tokens)
            ended = len(sequence.output) >= request.max_tokens or not sequence.ends.isdisjoint(tokens)
            sequence.frozen = self._verifies and ended

    def _accept(
        self, sequence: Sequence, tokens: tuple[int, ...]
    ) -> tuple[tuple[int, ...], FinishReason | None, int | None]:
        """Append tokens up to the message's end. Returns those appended, why it ended, and the stop token id if one did."""
        request, output = sequence.request, sequence.output
        if len(output) + len(tokens) < request.max_tokens and sequence.ends.isdisjoint(tokens):
            output.extend(tokens)
            self.generation_tokens += len(tokens)
            return tokens, None, None
        stop_ids = request.params.stop_token_ids
        for count, token in enumerate(tokens, 1):
            output.append(token)
            self.generation_tokens += 1
            if token in request.eos_ids:
                return tokens[:count], "stop", None
            if token in stop_ids:
                return tokens[:count], "stop", token
            if len(output) >= request.max_tokens:
                return tokens[:count], "length", None
        return tokens, None, None

    def _tell(
        self, sequence: Sequence, tokens: tuple[int, ...], result: RowResult, reason: FinishReason | None,
        stopped_by: int | None,
    ) -> None:
        prompt_logprobs: tuple[TokenLogprob, ...] = ()
        if sequence.prompt_logprobs and len(sequence.output) == len(tokens):  # the first news of this request
            prompt_logprobs, sequence.prompt_logprobs = tuple(sequence.prompt_logprobs), []
        event = TokenEvent(
            sequence.request.id, tokens, result.logprobs[: len(tokens)], prompt_logprobs, sequence.cached_tokens or 0, reason,
            stopped_by, drafted_tokens=sequence.drafts_made, accepted_tokens=sequence.drafts_kept,
        )
        self._events.append(event)

    @staticmethod
    def _keep_prompt_logprobs(sequence: Sequence, start: int, result: RowResult) -> None:
        """Entries for positions start + 1 ...; a chunk computed again after a preemption replaces its earlier entries."""
        if not sequence.output:
            del sequence.prompt_logprobs[start:]
            sequence.prompt_logprobs.extend(result.prompt_logprobs)

    def _count_prompt(self, sequence: Sequence) -> None:
        sequence.prompt_counted = True
        self.prompt_tokens += len(sequence.request.prompt)
        self.cached_tokens += sequence.cached_tokens or 0
