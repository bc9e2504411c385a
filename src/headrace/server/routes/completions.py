"""POST /v1/completions."""

from __future__ import annotations

import time
from uuid import uuid4

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from headrace.server.completion_answer import CompletionAnswer
from headrace.server.front import Front
from headrace.server.gate import tenant_of
from headrace.server.prompts import plain_prompts
from headrace.server.responses import respond
from headrace.server.schemas.completions import CompletionBody
from headrace.server.submission import check_count, submit


def add_routes(app: FastAPI, front: Front) -> None:
    decoder = msgspec.json.Decoder(CompletionBody)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        front.check_accepting()
        body = await front.bodies.read(request, decoder)
        front.check_model(body.model)
        params = body.params()
        given = body.prompts()
        check_count(front, len(given) * params.n)
        prompts = await plain_prompts(
            front, given, add_special=body.add_special_tokens is not False, needs_text=bool(body.echo)
        )
        skip_special = body.skip_special_tokens is not False
        generation = await submit(
            front, prompts, params, field="prompt", skip_special=skip_special, scores_only=body.scores_only,
            tenant=tenant_of(request.scope),
        )
        form = CompletionAnswer(body, front.tokenizer, id=f"cmpl-{uuid4().hex}", created_s=int(time.time()), model=front.model)
        return respond(front, body, generation, form)
