"""What travels between the front and its engine process: tagged messages, each in a frame of a length and msgpack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from headrace.config import EngineConfig
from headrace.errors import HeadraceError
from headrace.types import EngineInfo, EngineStats, Request, TokenEvent

MAX_FRAME_BYTES = 1 << 30
"""A longer frame is a corrupt one: a million tokens of prompt with 20 log-probabilities each take less."""
PREFIX_BYTES = 4


class FrameError(HeadraceError):
    """Bytes that are not a frame, or a frame that is not a message."""


class Build(msgspec.Struct, frozen=True, tag=True):
    """Front to engine, first and once: the model to load."""

    model: str
    config: EngineConfig


class Submit(msgspec.Struct, frozen=True, tag=True):
    request: Request


class Cancel(msgspec.Struct, frozen=True, tag=True):
    request: str


class Close(msgspec.Struct, frozen=True, tag=True):
    """Front to engine: end after the step in progress."""


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Engine to front: weights loaded so far."""

    done_bytes: int
    total_bytes: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    info: EngineInfo


class Turned(msgspec.Struct, frozen=True, tag=True):
    """Engine to front: the loop has turned. All events of one step; stats at times; neither when it only shows life."""

    events: tuple[TokenEvent, ...] = ()
    stats: EngineStats | None = None


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Engine to front, last: why it ends. `kind` is the name of a class of `headrace.errors`."""

    kind: str
    message: str


Command = Build | Submit | Cancel | Close
Report = Progress | Ready | Turned | Failed
Message = TypeVar("Message")

_ENCODER = msgspec.msgpack.Encoder()


def encode(message: Command | Report) -> bytes:
    """The whole frame: its length in 4 bytes, little-endian, and the message."""
    payload = _ENCODER.encode(message)
    return len(payload).to_bytes(PREFIX_BYTES, "little") + payload


class FrameReader(Generic[Message]):
    """Turns a byte stream, however it is cut, back into messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Message]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Messages that `data` completes. Raises FrameError at the first that is malformed; nothing after it can be read."""
        self._buffer += data
        while len(self._buffer) >= PREFIX_BYTES:
            end = PREFIX_BYTES + int.from_bytes(self._buffer[:PREFIX_BYTES], "little")
            if end > MAX_FRAME_BYTES:
                raise FrameError(f"a frame claims to be {end} bytes long")
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[PREFIX_BYTES:end])
            del self._buffer[:end]
            yield self._decode(payload)

    def _decode(self, payload: bytes) -> Message:
        try:
            return self._decoder.decode(payload)
        except (msgspec.MsgspecError, HeadraceError) as error:
            raise FrameError(f"a frame of {len(payload)} bytes cannot be read: {error}") from error


def command_reader() -> FrameReader[Command]:
    return FrameReader(msgspec.msgpack.Decoder(Command))


def report_reader() -> FrameReader[Report]:
    return FrameReader(msgspec.msgpack.Decoder(Report))
