"""The ASGI application: routes, errors, and the gate before them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from headrace.config import ServerConfig
from headrace.engine.client import Engine
from headrace.errors import HeadraceError
from headrace.registry import Registry
from headrace.server.errors import handle
from headrace.server.front import Front
from headrace.server.gate import Gate

if TYPE_CHECKING:
    from headrace.engine.chat import ChatTemplate
    from headrace.engine.tokenizer import Tokenizer

ROUTES = Registry("headrace.server.routes")
"""Every module there has `add_routes(app, front)`."""
KEEP_ALIVE_S = 5.0


def create_app(
    engine: Engine,
    tokenizer: Tokenizer,
    chat_template: ChatTemplate | None,
    config: ServerConfig,
    *,
    keep_alive_s: float = KEEP_ALIVE_S,
) -> FastAPI:
    """An app that serves `engine`. `app.state.front` is its Front.

    keep_alive_s: after so long without an event a stream gets a comment.
    """
    app = FastAPI(title="headrace", openapi_url=None)
    app.router.redirect_slashes = False
    front = app.state.front = Front(engine, tokenizer, chat_template, config, keep_alive_s=keep_alive_s)
    for kind in (HeadraceError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, handle)
    for name in ROUTES:
        ROUTES[name].add_routes(app, front)
    app.add_middleware(Gate, keys=config.api_key)
    return app
