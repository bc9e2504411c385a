"""What every route sees of the server: the engine, the tokenizer, the settings, and what is being answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.config import ServerConfig
from headrace.engine.client import Engine
from headrace.engine.metrics import Metrics
from headrace.errors import EngineUnavailableError
from headrace.server.body import BodyReader
from headrace.server.errors import ApiError
from headrace.server.generation import Generation

if TYPE_CHECKING:
    from headrace.engine.chat import ChatTemplate
    from headrace.engine.tokenizer import Tokenizer

IDLE_HEARTBEAT_S = 3.0
BUSY_HEARTBEAT_S = 30.0
"""A single long step shows no sign of life; an idle loop does so many times a second."""


def printable(name: str) -> str:
    """A name that JSON and one line can carry: file names may hold bytes that are no text, and line ends."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)


class Front:
    """One server's state. Lives in one asyncio loop."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        config: ServerConfig,
        *,
        keep_alive_s: float,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.config = config
        self.keep_alive_s = keep_alive_s
        self.model = printable(config.served_name or engine.info.model.rstrip("/").rpartition("/")[2])
        self.created_s = int(time.time())
        self.metrics = Metrics(engine.stats)
        self.bodies = BodyReader(config.max_body_bytes)
        self.draining = False
        self._open: set[Generation] = set()
        self._all_answered = asyncio.Event()
        self._all_answered.set()

    def check_model(self, name: str | None) -> None:
        """A request that names no model means the one there is. Raises ApiError 404 for another name."""
        if name and name != self.model:
            raise ApiError(404, f"the model {name!r} does not exist; this server has {self.model!r}", param="model",
                           code="model_not_found")

    def trouble(self) -> str | None:
        """Why no token can be made now, or None."""
        if self.draining:
            return "the server is shutting down"
        age_s = self.engine.heartbeat_age_s()
        if age_s == float("inf"):
            return "the engine has died"
        limit_s = BUSY_HEARTBEAT_S if self.engine.stats().requests_running else IDLE_HEARTBEAT_S
        return f"the engine has shown no sign of life for {age_s:.0f} s" if age_s > limit_s else None

    def check_accepting(self) -> None:
        """Raises EngineUnavailableError while the server drains."""
        if self.draining:
            raise EngineUnavailableError("the server is shutting down")

    @contextmanager
    def answering(self, generation: Generation) -> Iterator[None]:
        """While its answer is being sent; whatever is unfinished afterwards is cancelled."""
        self._open.add(generation)
        self._all_answered.clear()
        try:
            yield
        finally:
            generation.cancel()
            self._open.discard(generation)
            if not self._open:
                self._all_answered.set()

    async def drain(self, limit_s: float) -> None:
        """Refuse new requests and wait until the open ones are answered; cancel those that take longer than `limit_s`."""
        self.draining = True
        try:
            async with asyncio.timeout(limit_s):
                await self._all_answered.wait()
        except TimeoutError:
            for generation in tuple(self._open):
                generation.cancel()
