"""The answer to a generating request, streamed or whole."""

from __future__ import annotations

from starlette.responses import Response

from headrace.server.answer import AnswerFormat
from headrace.server.front import Front
from headrace.server.generation import Generation
from headrace.server.schemas.sampling import GenerationBody
from headrace.server.sse import EventStreamResponse
from headrace.server.whole import WholeResponse


def respond(front: Front, body: GenerationBody, generation: Generation, form: AnswerFormat) -> Response:
    if body.stream:
        return EventStreamResponse(front, generation, form, body.stream_options)
    return WholeResponse(front, generation, form)
