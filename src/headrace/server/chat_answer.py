"""Answers of /v1/chat/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headrace.server.answer import Answer, ChunkFrame, Identity
from headrace.server.choice import Choice, Piece
from headrace.server.schemas.chat import ChatBody
from headrace.server.tokens import chat_logprobs, prompt_logprobs
from headrace.server.usage import Usage

if TYPE_CHECKING:
    from headrace.engine.tokenizer import Tokenizer

_encode = msgspec.json.encode


class ChatAnswer:
    """Implements answer.AnswerFormat."""

    def __init__(self, body: ChatBody, tokenizer: Tokenizer, *, id: str, created_s: int, model: str) -> None:
        self._tokenizer = tokenizer
        self._shows_logprobs = bool(body.logprobs)
        self._shows_prompt = body.prompt_logprobs is not None
        self._identity = Identity(id, "chat.completion", created_s, model)
        self._frame = ChunkFrame(Identity(id, "chat.completion.chunk", created_s, model), body.stream_options)

    def events(self, choice: Choice, piece: Piece, usage: Usage | None, *, first: bool) -> bytes:
        events = self._chunk(choice, b'{"role":"assistant","content":""}', usage) if first else b""
        if piece.text or (self._shows_logprobs and piece.logprobs):
            logprobs = _encode(self._logprobs(piece.logprobs)) if self._shows_logprobs else b"null"
            events += self._chunk(choice, b'{"content":' + _encode(piece.text) + b"}", usage, logprobs)
        if piece.finish_reason is not None:
            end = b"%b,\"stop_reason\":%b" % (_encode(piece.finish_reason), _encode(piece.stop_reason))
            events += self._chunk(choice, b"{}", usage, finish=end)
        return events

    def closing(self, usage: Usage) -> bytes:
        return self._frame.event(b"", usage)

    def whole(self, answers: list[Answer], usage: Usage) -> bytes:
        body = {**self._identity.fields(), "choices": [self._choice(each) for each in answers], "usage": usage.fields()}
        if self._shows_prompt:
            body["prompt_logprobs"] = prompt_logprobs(self._tokenizer, answers[0].prompt_logprobs)
        return _encode(body)

    def _chunk(
        self, choice: Choice, delta: bytes, usage: Usage | None, logprobs: bytes = b"null", finish: bytes = b"null"
    ) -> bytes:
        parts = (choice.index, delta, logprobs, finish)
        return self._frame.event(b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}' % parts, usage)

    def _choice(self, answer: Answer) -> dict[str, Any]:
        return {
            "index": answer.choice.index,
            "message": {"role": "assistant", "content": answer.text},
            "logprobs": self._logprobs(answer.logprobs) if self._shows_logprobs else None,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
        }

    def _logprobs(self, logprobs: Any) -> dict[str, Any]:
        return {"content": chat_logprobs(self._tokenizer, logprobs)}
