"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from uuid import uuid4

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from headrace.server.chat_answer import ChatAnswer
from headrace.server.front import Front
from headrace.server.gate import tenant_of
from headrace.server.prompts import chat_prompt
from headrace.server.responses import respond
from headrace.server.schemas.chat import ChatBody
from headrace.server.submission import submit


def add_routes(app: FastAPI, front: Front) -> None:
    decoder = msgspec.json.Decoder(ChatBody)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        front.check_accepting()
        body = await front.bodies.read(request, decoder)
        front.check_model(body.model)
        params = body.params()
        prompt = await chat_prompt(front, body)
        skip_special = body.skip_special_tokens is not False
        generation = await submit(
            front, [prompt], params, field="messages", skip_special=skip_special, tenant=tenant_of(request.scope)
        )
        form = ChatAnswer(body, front.tokenizer, id=f"chatcmpl-{uuid4().hex}", created_s=int(time.time()), model=front.model)
        return respond(front, body, generation, form)
