"""The server's life: bind, load, announce, answer, drain, end."""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import logging
import math
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.config import ServerConfig
from headrace.engine.client import Engine
from headrace.errors import ConfigError
from headrace.server.app import create_app
from headrace.server.front import Front
from headrace.server.http_server import LAST_WORDS_S, HttpServer, http_config
from headrace.server.listen import allow_many_connections, bind, check_exposure, listen, url
from headrace.server.stop_signals import StopSignals

if TYPE_CHECKING:
    from headrace.engine.chat import ChatTemplate
    from headrace.engine.tokenizer import Tokenizer

DEATH_CHECK_S = 0.25
LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Service:
    """What there is to serve."""

    engine: Engine
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None


def run(start: Callable[[], Awaitable[Service]], config: ServerConfig, *, announce: Callable[[str], None] = print) -> int:
    """Serve until a signal or the engine's end; returns the exit code.

    `start` loads the model, in the server's own loop, after the port has been taken; its exceptions pass through. `announce`
    gets one line when requests are answered. SIGTERM and SIGINT drain (new requests get 503, running ones config.drain_s to
    finish) and the code is 0; a second signal ends the process at once. The code is 1 when the engine died, 128 + signal when
    a signal came while loading. Raises ConfigError for an address that cannot be had, or that needs an API key, and for
    a setting that cannot work.
    """
    check_exposure(config)
    _check_numbers(config)
    allow_many_connections()
    with bind(config.host, config.port) as sock, asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(start, config, sock, announce))


def _check_numbers(config: ServerConfig) -> None:
    if config.max_queue < 0:
        raise ConfigError(f"max_queue must be 0 or more, not {config.max_queue}")
    if config.max_body_bytes < 1:
        raise ConfigError(f"max_body_bytes must be 1 or more, not {config.max_body_bytes}")
    if not config.drain_s >= 0:  # so that nan is refused too
        raise ConfigError(f"drain_s must be 0 or more, not {config.drain_s}")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory


async def _serve(
    start: Callable[[], Awaitable[Service]], config: ServerConfig, sock: socket.socket, announce: Callable[[str], None]
) -> int:
    signals = StopSignals()
    try:
        loading = asyncio.ensure_future(start())
        await _first(loading, signals.wait())
        if not loading.done():
            loading.cancel()
            await asyncio.wait((loading,))
            return 128 + signals.first
        service = loading.result()
        try:
            return await _answer(service, config, sock, signals, announce)
        finally:
            await service.engine.close()
    finally:
        signals.restore()


async def _answer(
    service: Service, config: ServerConfig, sock: socket.socket, signals: StopSignals, announce: Callable[[str], None]
) -> int:
    app = create_app(service.engine, service.tokenizer, service.chat_template, config)
    front: Front = app.state.front
    server = HttpServer(http_config(app))
    listen(sock)
    serving = asyncio.ensure_future(server.serve(sockets=[sock]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    _settle_garbage()
    announce(f"headrace is ready: {front.model} on {url(config.host, sock)}")
    death = asyncio.ensure_future(_death(service.engine))
    await _first(serving, death, signals.wait())
    if death.done():
        LOG.error("the engine has died; the server ends")
    await front.drain(LAST_WORDS_S if death.done() else config.drain_s)
    server.should_exit = True
    await serving
    death.cancel()
    return 1 if math.isinf(service.engine.heartbeat_age_s()) else 0


async def _first(*awaitables: Awaitable[object]) -> None:
    """Wait for the first to be done; coroutines that are not are cancelled, futures stay."""
    tasks = [asyncio.ensure_future(each) for each in awaitables]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, given in zip(tasks, awaitables, strict=True):
        if task is not given:
            task.cancel()


async def _death(engine: Engine) -> None:
    while not math.isinf(engine.heartbeat_age_s()):
        await asyncio.sleep(DEATH_CHECK_S)


def _settle_garbage() -> None:
    """What start-up made stays for good: the collector need not look at it again, which keeps its pauses short."""
    gc.collect()
    gc.freeze()
