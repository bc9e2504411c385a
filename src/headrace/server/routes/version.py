"""GET /version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import msgspec
from fastapi import FastAPI
from starlette.responses import Response

from headrace.server.front import Front


def add_routes(app: FastAPI, front: Front) -> None:
    try:
        installed = version("headrace")
    except PackageNotFoundError:  # run from a source tree
        installed = "unknown"
    body = msgspec.json.encode({"version": installed})

    @app.get("/version")
    async def get_version() -> Response:
        return Response(body, media_type="application/json")
