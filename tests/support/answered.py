"""What requests are answered by an engine's loop."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.engine.core import EngineCore
from headrace.types import Request


def answered(core: EngineCore, requests: Iterable[Request]) -> dict[str, list[int]]:
    """Each one's tokens; all are there at once."""
    outputs: dict[str, list[int]] = {}
    for request in requests:
        outputs[request.id] = []
        core.add(request)
    while core.has_work:
        for event in core.step():
            assert event.finish_reason != "error", event.error
            outputs[event.request].extend(event.tokens)
    return outputs
