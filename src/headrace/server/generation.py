"""All the completions that one HTTP request asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from headrace.server.choice import Choice
from headrace.server.usage import Usage


class Generation:
    """The choices of one response, prompts in order, `n` for each prompt."""

    def __init__(self, choices: Sequence[Choice], n: int) -> None:
        self.choices = tuple(choices)
        self._n = n

    def usage(self) -> Usage:
        """So far. A prompt counts once, however many choices it has; it was cached as far as its first choice found it."""
        firsts = self.choices[:: self._n]
        return Usage(
            sum(len(choice.prompt.tokens) for choice in firsts),
            sum(choice.completion_tokens for choice in self.choices),
            sum(choice.cached_tokens for choice in firsts),
        )

    def cancel(self) -> None:
        """Let the engine drop what has not ended."""
        for choice in self.choices:
            choice.cancel()

    async def for_each(self, work: Callable[[Choice], Awaitable[None]]) -> None:
        """`work` on all choices at once. The first failure ends the others and is raised."""
        if len(self.choices) == 1:
            await work(self.choices[0])
            return
        tasks = [asyncio.ensure_future(work(choice)) for choice in self.choices]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
