"""What the routes' answer formats have in common: the whole answer, the frame of a streamed chunk, and the protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from headrace.server.choice import Choice, Piece
from headrace.server.schemas.sampling import StreamOptions
from headrace.server.usage import Usage
from headrace.types import FinishReason, TokenLogprob


@dataclass(slots=True)
class Answer:
    """A choice's pieces put together."""

    choice: Choice
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def add(self, piece: Piece) -> None:
        self.texts.append(piece.text)
        self.logprobs += piece.logprobs
        self.offsets += piece.offsets
        self.prompt_logprobs += piece.prompt_logprobs
        self.finish_reason, self.stop_reason = piece.finish_reason, piece.stop_reason

    @property
    def text(self) -> str:
        return "".join(self.texts)


class AnswerFormat(Protocol):
    """How one route writes its answers. Made for each request."""

    def events(self, choice: Choice, piece: Piece, usage: Usage | None, *, first: bool) -> bytes:
        """Stream: events of one piece, perhaps none; `first`: it is the choice's first. usage: so far, if it is to be shown."""
        ...

    def closing(self, usage: Usage) -> bytes:
        """Stream: the event after the last piece that carries only the usage."""
        ...

    def whole(self, answers: list[Answer], usage: Usage) -> bytes:
        """The JSON of an answer that is not streamed."""
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    """What every chunk of a response repeats. kind: the `object` field."""

    id: str
    kind: str
    created_s: int
    model: str

    def fields(self) -> dict[str, object]:
        return {"id": self.id, "object": self.kind, "created": self.created_s, "model": self.model}


class ChunkFrame:
    """Server-sent events with one choice each. JSON is put together from encoded parts: a chunk is made for every token."""

    def __init__(self, identity: Identity, options: StreamOptions | None) -> None:
        self._head = b"data: " + msgspec.json.encode(identity.fields())[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if options and options.include_usage else b"]}\n\n"

    def event(self, choice: bytes, usage: Usage | None = None) -> bytes:
        """`choice`: the JSON object of one choice, or nothing."""
        if usage is None:
            return self._head + choice + self._tail
        return self._head + choice + b'],"usage":' + msgspec.json.encode(usage.fields()) + b"}\n\n"
