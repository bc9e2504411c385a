"""POST /tokenize."""

from __future__ import annotations

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import RequestError
from headrace.server.front import Front
from headrace.server.json_response import json_response
from headrace.server.prompts import chat_prompt, plain_prompts
from headrace.server.schemas.tokenize import TokenizeBody
from headrace.server.tokens import token_name


def add_routes(app: FastAPI, front: Front) -> None:
    decoder = msgspec.json.Decoder(TokenizeBody)

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        body = await front.bodies.read(request, decoder)
        front.check_model(body.model)
        tokens = await _tokens(front, body)
        answer: dict[str, object] = {"count": len(tokens), "max_model_len": front.engine.info.context, "tokens": tokens}
        if body.return_token_strs:
            answer["token_strs"] = [token_name(front.tokenizer, token) for token in tokens]
        return json_response(answer)


async def _tokens(front: Front, body: TokenizeBody) -> tuple[int, ...]:
    if body.messages is not None:
        return (await chat_prompt(front, body)).tokens
    if body.prompt is None:
        raise RequestError("prompt or messages is required", param="prompt")
    add_special = body.add_special_tokens is not False
    [prompt] = await plain_prompts(front, [body.prompt], add_special=add_special, needs_text=False)
    return prompt.tokens
