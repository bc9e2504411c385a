"""uvicorn as headrace runs it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import uvicorn
from fastapi import FastAPI

from headrace.server.http_protocol import HttpProtocol
from headrace.server.listen import BACKLOG

LAST_WORDS_S = 2
"""How long answers may take to reach their clients once nothing more will be computed."""


def http_config(app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app, lifespan="off", log_config=None, access_log=False, server_header=False, timeout_keep_alive=75, backlog=BACKLOG,
        timeout_graceful_shutdown=LAST_WORDS_S, ws="none", http=HttpProtocol,
    )


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: `stop_signals` decides when the server ends."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
