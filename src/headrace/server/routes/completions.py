"""POST /v1/completions."""

from __future__ import annotations

import time
from uuid import uuid4

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import RequestError
from headrace.server.choice import Prompt
from headrace.server.completion_answer import CompletionAnswer
from headrace.server.front import Front
from headrace.server.prompts import text_prompt, token_prompt
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
        prompts = [await _prompt(front, body, each) for each in given]
        skip_special = body.skip_special_tokens is not False
        generation = await submit(
            front, prompts, params, field="prompt", skip_special=skip_special, scores_only=body.scores_only
        )
        form = CompletionAnswer(body, front.tokenizer, id=f"cmpl-{uuid4().hex}", created_s=int(time.time()), model=front.model)
        return respond(front, body, generation, form)


async def _prompt(front: Front, body: CompletionBody, given: str | tuple[int, ...]) -> Prompt:
    if isinstance(given, str):
        prompt = await text_prompt(front, given, add_special=body.add_special_tokens is not False)
    else:
        prompt = await token_prompt(front, given, needs_text=bool(body.echo))
    if not prompt.tokens:
        raise RequestError("prompt must not be empty", param="prompt")
    return prompt
