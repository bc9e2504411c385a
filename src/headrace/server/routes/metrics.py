"""GET /metrics, in Prometheus' text form."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.responses import Response

from headrace.engine.metrics import CONTENT_TYPE
from headrace.server.front import Front


def add_routes(app: FastAPI, front: Front) -> None:
    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(front.metrics.exposition(), media_type=CONTENT_TYPE)
