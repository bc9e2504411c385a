"""From prompts and parameters to requests that the engine has accepted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from uuid import uuid4

from headrace.engine.requests import build_requests
from headrace.errors import RequestError
from headrace.server.choice import Choice, Prompt
from headrace.server.front import Front
from headrace.server.generation import Generation
from headrace.server.offload import offload
from headrace.types import Request, SamplingParams


async def submit(
    front: Front, prompts: Sequence[Prompt], params: SamplingParams, *, field: str, skip_special: bool,
    scores_only: bool = False, tenant: str = "",
) -> Generation:
    """Every request is checked before the first is submitted; if one is turned away none stays behind.

    field: the body's field that the prompts came from, for errors. tenant: with whom cached prefixes are shared. Raises
    RequestError, QueueFullError, EngineUnavailableError.
    """
    tokens = sum(len(prompt.tokens) for prompt in prompts)
    try:
        requests = await offload(tokens, lambda: _requests(front, prompts, params, tenant))
    except RequestError as error:
        raise RequestError(str(error), param=field if error.param == "prompt" else error.param, code=error.code) from None
    front.check_accepting()
    choices: list[Choice] = []
    try:
        for index, (prompt, request) in enumerate(requests):
            choices.append(Choice(index, prompt, request, front.engine, front.tokenizer, front.metrics,
                                  skip_special=skip_special, scores_only=scores_only))
    except BaseException:
        for choice in choices:
            choice.cancel()
        raise
    return Generation(choices, params.n)


def check_count(front: Front, count: int) -> None:
    """Raises RequestError for more completions than the server can ever hold."""
    capacity = front.engine.info.max_seqs + front.config.max_queue
    if count > capacity:
        raise RequestError(f"the prompts ask for {count} completions at once, and the server holds at most {capacity}",
                           param="prompt")


def _requests(
    front: Front, prompts: Sequence[Prompt], params: SamplingParams, tenant: str
) -> list[tuple[Prompt, Request]]:
    info, eos_ids, arrival_s = front.engine.info, front.tokenizer.eos_ids, time.monotonic()
    return [
        (prompt, request)
        for prompt in prompts
        for request in build_requests(uuid4().hex, prompt.tokens, params, info, eos_ids, arrival_s, tenant)
    ]
