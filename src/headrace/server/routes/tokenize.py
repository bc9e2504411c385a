"""POST /tokenize and /detokenize."""

from __future__ import annotations

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import RequestError
from headrace.server.front import Front
from headrace.server.prompts import chat_prompt, check_tokens, text_prompt
from headrace.server.schemas.tokenize import DetokenizeBody, TokenizeBody
from headrace.server.submission import offload
from headrace.server.tokens import token_name


def add_routes(app: FastAPI, front: Front) -> None:
    tokenize_decoder = msgspec.json.Decoder(TokenizeBody)
    detokenize_decoder = msgspec.json.Decoder(DetokenizeBody)

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        body = await front.bodies.read(request, tokenize_decoder)
        front.check_model(body.model)
        tokens = await _tokens(front, body)
        answer: dict[str, object] = {"count": len(tokens), "max_model_len": front.engine.info.context, "tokens": tokens}
        if body.return_token_strs:
            answer["token_strs"] = [token_name(front.tokenizer, token) for token in tokens]
        return _json(answer)

    @app.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        body = await front.bodies.read(request, detokenize_decoder)
        front.check_model(body.model)
        if body.tokens is None:
            raise RequestError("tokens is required", param="tokens")
        tokens, skip_special = tuple(body.tokens), bool(body.skip_special_tokens)
        check_tokens(front, tokens, "tokens")
        text = await offload(len(tokens), lambda: front.tokenizer.decode(tokens, skip_special=skip_special))
        return _json({"prompt": text})


async def _tokens(front: Front, body: TokenizeBody) -> tuple[int, ...]:
    if body.messages is not None:
        return (await chat_prompt(front, body)).tokens
    if body.prompt is None:
        raise RequestError("prompt or messages is required", param="prompt")
    return (await text_prompt(front, body.prompt, add_special=body.add_special_tokens is not False)).tokens


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
