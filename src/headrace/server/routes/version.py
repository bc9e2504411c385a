"""GET /version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI
from starlette.responses import Response

from headrace.server.front import Front
from headrace.server.json_response import json_response


def add_routes(app: FastAPI, front: Front) -> None:
    try:
        installed = version("headrace")
    except PackageNotFoundError:  # run from a source tree
        installed = "unknown"

    @app.get("/version")
    async def get_version() -> Response:
        return json_response({"version": installed})
