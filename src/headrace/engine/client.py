"""What the front sees of an engine, whichever transport is behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from headrace.types import EngineInfo, EngineStats, Request, TokenEvent


class Engine(Protocol):
    """A running engine. All methods are called from one asyncio loop.

    Implementations: `engine.process.EngineProcess` (a process of its own) and the tests' scripted engine.
    """

    @property
    def info(self) -> EngineInfo: ...

    def submit(self, request: Request) -> AsyncIterator[TokenEvent]:
        """Queue a request; its events follow. Events that the reader is too slow for are merged, so memory stays bounded.

        The iterator ends after the event with a finish_reason. Raises QueueFullError when info.max_seqs running and
        max_queue waiting requests are held already, EngineUnavailableError when the engine is dead or draining.
        An engine that dies ends every stream with finish_reason "error".
        """
        ...

    def cancel(self, request_id: str) -> None:
        """Stop a request within one step and free what it holds. Unknown and finished ids are ignored."""
        ...

    def stats(self) -> EngineStats:
        """The newest figures the engine sent."""
        ...

    def heartbeat_age_s(self) -> float:
        """Seconds since the step loop last showed that it turns; infinite once the engine is dead."""
        ...

    async def close(self) -> None:
        """End the engine and free its memory."""
        ...
