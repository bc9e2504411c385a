"""Answers of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.server.answer import Answer, ChunkFrame, Identity
from headrace.server.choice import Choice, Piece
from headrace.server.schemas.completions import CompletionBody
from headrace.server.tokens import Block, LegacyLogprobs, joined, prompt_logprobs
from headrace.server.usage import Usage
from headrace.types import TokenLogprob

if TYPE_CHECKING:
    from headrace.engine.tokenizer import Tokenizer

_encode = msgspec.json.encode


class CompletionAnswer:
    """Implements answer.AnswerFormat."""

    def __init__(self, body: CompletionBody, tokenizer: Tokenizer, *, id: str, created_s: int, model: str) -> None:
        self._tokenizer = tokenizer
        self._echo = bool(body.echo)
        self._shows_logprobs = body.logprobs is not None
        self._shows_prompt = body.prompt_logprobs is not None
        self._legacy: dict[int, LegacyLogprobs] = {}  # by choice
        self._identity = Identity(id, "text_completion", created_s, model)
        self._frame = ChunkFrame(self._identity, body.stream_options)

    def events(self, choice: Choice, piece: Piece, usage: Usage | None, *, first: bool) -> bytes:
        logprobs = self._logprobs(choice, piece.prompt_logprobs, piece.logprobs, piece.offsets)
        text = choice.prompt.text + piece.text if first and self._echo else piece.text
        of_prompt = b""
        if first and self._shows_prompt:
            of_prompt = b',"prompt_logprobs":' + _encode(prompt_logprobs(self._tokenizer, piece.prompt_logprobs))
        if not (text or of_prompt or logprobs or piece.finish_reason):
            return b""
        json = b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b,"stop_reason":%b%b}' % (
            choice.index, _encode(text), _encode(logprobs), _encode(piece.finish_reason), _encode(piece.stop_reason), of_prompt
        )
        return self._frame.event(json, usage)

    def closing(self, usage: Usage) -> bytes:
        return self._frame.event(b"", usage)

    def whole(self, answers: list[Answer], usage: Usage) -> bytes:
        choices = [self._choice(each) for each in answers]
        return _encode({**self._identity.fields(), "choices": choices, "usage": usage.fields()})

    def _choice(self, answer: Answer) -> dict[str, Any]:
        choice = answer.choice
        fields: dict[str, Any] = {
            "index": choice.index,
            "text": choice.prompt.text + answer.text if self._echo else answer.text,
            "logprobs": self._logprobs(choice, answer.prompt_logprobs, answer.logprobs, answer.offsets),
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
        }
        if self._shows_prompt:
            fields["prompt_logprobs"] = prompt_logprobs(self._tokenizer, answer.prompt_logprobs)
        return fields

    def _logprobs(
        self, choice: Choice, of_prompt: Sequence[TokenLogprob], generated: Sequence[TokenLogprob], offsets: Sequence[int]
    ) -> Block | None:
        """The next block of a choice's log-probabilities; the first one begins with the prompt's if that is echoed."""
        if not self._shows_logprobs:
            return None
        blocks: list[Block] = []
        legacy = self._legacy.get(choice.index)
        if legacy is None:
            legacy = self._legacy[choice.index] = LegacyLogprobs(self._tokenizer)
            if self._echo:
                blocks.append(legacy.prompt_block(choice.prompt.tokens, of_prompt, choice.prompt.text))
        if generated:
            blocks.append(legacy.block(generated, offsets))
        return joined(blocks)
