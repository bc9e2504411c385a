"""GET /v1/models and /v1/models/{id}: the one model there is."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.responses import Response

from headrace.server.front import Front
from headrace.server.json_response import json_response


def add_routes(app: FastAPI, front: Front) -> None:
    context, vocab_size = front.engine.info.context, front.engine.info.vocab_size
    model = {
        "id": front.model,
        "object": "model",
        "created": front.created_s,
        "owned_by": "headrace",
        "root": front.model,
        "max_model_len": context,
        "context_length": context,
        "vocab_size": vocab_size,
    }

    @app.get("/v1/models")
    async def models() -> Response:
        return json_response({"object": "list", "data": [model]})

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        front.check_model(name)
        return json_response(model)
