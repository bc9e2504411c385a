"""POST /detokenize."""

from __future__ import annotations

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import RequestError
from headrace.server.front import Front
from headrace.server.json_response import json_response
from headrace.server.offload import offload
from headrace.server.prompts import check_tokens
from headrace.server.schemas.tokenize import DetokenizeBody


def add_routes(app: FastAPI, front: Front) -> None:
    decoder = msgspec.json.Decoder(DetokenizeBody)

    @app.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        body = await front.bodies.read(request, decoder)
        front.check_model(body.model)
        if body.tokens is None:
            raise RequestError("tokens is required", param="tokens")
        tokens, skip_special = tuple(body.tokens), bool(body.skip_special_tokens)
        check_tokens(front, tokens, "tokens")
        text = await offload(len(tokens), lambda: front.tokenizer.decode(tokens, skip_special=skip_special))
        return json_response({"prompt": text})
