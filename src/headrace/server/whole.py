"""An answer in one piece."""

from __future__ import annotations

import logging

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.server.answer import Answer, AnswerFormat
from headrace.server.choice import Choice
from headrace.server.connection import ClientGoneError, while_connected
from headrace.server.front import Front
from headrace.server.generation import Generation
from headrace.server.offload import offload

LOG = logging.getLogger(__name__)


class WholeResponse(Response):
    """Answers when every choice of `generation` is complete; the engine drops them if the client goes away before."""

    def __init__(self, front: Front, generation: Generation, form: AnswerFormat) -> None:
        self._front = front
        self._generation = generation
        self._form = form
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._front.answering(self._generation):
            try:
                answers = await while_connected(receive, self._collect())
            except ClientGoneError:
                LOG.info("%s aborted by client", scope["path"])
                return
            size = sum(len(answer.logprobs) + len(answer.prompt_logprobs) for answer in answers)
            body = await offload(size, lambda: self._form.whole(answers, self._generation.usage()))
            await Response(body, media_type="application/json")(scope, receive, send)

    async def _collect(self) -> list[Answer]:
        answers = [Answer(choice) for choice in self._generation.choices]

        async def collect(choice: Choice) -> None:
            async for piece in choice.pieces():
                answers[choice.index].add(piece)

        await self._generation.for_each(collect)
        return answers
