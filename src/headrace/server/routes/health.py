"""GET /health and /ping: 200 only while tokens can be made."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.responses import Response

from headrace.errors import EngineUnavailableError
from headrace.server.front import Front
from headrace.server.json_response import json_response


def add_routes(app: FastAPI, front: Front) -> None:
    async def health() -> Response:
        trouble = front.trouble()
        if trouble is not None:
            raise EngineUnavailableError(trouble)
        return json_response({"status": "ok"})

    for path in ("/health", "/ping"):
        app.add_api_route(path, health, methods=["GET", "HEAD"])
