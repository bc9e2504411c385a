"""Request bodies: read within limits, then decoded into a schema, every fault a 4xx that names its field."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from headrace.errors import QueueFullError, RequestError
from headrace.server.errors import ApiError

CHUNK_TIMEOUT_S = 60.0
"""The longest pause inside a body."""
BODIES_AT_ONCE = 8
"""Bodies of the largest size that may be in memory at once, unfinished; smaller ones count by their bytes."""
T = TypeVar("T")


class BodyReader:
    """Reads bodies of at most `max_bytes` each, and of BODIES_AT_ONCE times that together while they are being read."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._free_bytes = max_bytes * BODIES_AT_ONCE

    async def read(self, request: Request, decoder: msgspec.json.Decoder[T]) -> T:
        """The decoded body. Raises ApiError 408, 413, 415, RequestError (400), QueueFullError."""
        _check_content_type(request)
        announced = request.headers.get("content-length", "")
        if announced.isdigit() and int(announced) > self.max_bytes:
            raise self._too_large()
        return decode(await self._collect(request), decoder)

    async def _collect(self, request: Request) -> bytes:
        parts: list[bytes] = []
        held_bytes = 0
        try:
            async for part in _parts(request):
                held_bytes += len(part)
                self._free_bytes -= len(part)
                if held_bytes > self.max_bytes:
                    raise self._too_large()
                if self._free_bytes < 0:
                    raise QueueFullError("too many large request bodies at once")
                parts.append(part)
            return b"".join(parts)
        finally:
            self._free_bytes += held_bytes

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the request body is larger than {self.max_bytes} bytes", code="body_too_large")


def _check_content_type(request: Request) -> None:
    given = request.headers.get("content-type", "application/json")
    kind = given.partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ApiError(415, f"content-type must be application/json, not {kind!r}", code="unsupported_media_type")


async def _parts(request: Request) -> AsyncIterator[bytes]:
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(CHUNK_TIMEOUT_S):
                part = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise ApiError(408, f"the request body stopped for {CHUNK_TIMEOUT_S:g} s", code="body_timeout") from None
        except ClientDisconnect:
            raise ApiError(400, "the request body was cut off", code="body_cut_off") from None
        yield part


def decode(raw: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """JSON bytes as the decoder's schema. Raises RequestError naming the field."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        param = _culprit(str(error))
        raise RequestError(f"{param or 'the body'}: {_rule(str(error))}", param=param) from None
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply", code="invalid_json") from None


def _culprit(message: str) -> str | None:
    at = re.search(r"`\$\.?([^`]*)`$", message)
    return at.group(1) or None if at else None


def _rule(message: str) -> str:
    rule = message.partition(" - at `")[0]
    return rule[:1].lower() + rule[1:]
