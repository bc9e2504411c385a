"""Times with and without a cached prefix, in this process: a document asked twice, and many requests that begin alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter, sleep
from typing import Any

from headrace.bench.generation import SAMPLING, WatchedLLM
from headrace.bench.summary import spread_ms
from headrace.types import Completion

_IDLE_STEPS = 3
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Conversation:
    """A document of `document` tokens, answered by `output`, and then `question` tokens more."""

    document: int
    question: int
    output: int


@dataclass(frozen=True, slots=True)
class Crowd:
    """`users` requests at once that have `shared` tokens in common and `question` of their own, each answered by `output`."""

    users: int
    shared: int
    question: int
    output: int


@dataclass(frozen=True, slots=True)
class Timed:
    """first_s: to each request's first token. all_s: to the last one's end."""

    completions: tuple[Completion, ...]
    first_s: tuple[float, ...]
    all_s: float


class PrefixLLM(WatchedLLM):
    """Nothing that one measurement cached is found by another: each has a salt of its own."""

    def turns(self, asked: Conversation, opted_out: bool = False) -> dict[str, Any]:
        """Times to the first tokens of turn 1, and of turn 2, which has all of turn 1 before it. opted_out: without a cache."""
        salt, (document, question) = self._salt(), (self._prompts(1, n)[0] for n in (asked.document, asked.question))
        first = self._timed([document], asked.output, salt, opted_out)
        again = [*document, *first.completions[0].tokens, *question]
        second = self._timed([again], asked.output, salt, opted_out)
        return {
            "document_tokens": asked.document, "turn_2_tokens": len(again),
            "cached_tokens": second.completions[0].cached_tokens, "turn_1_ttft_ms": first.first_s[0] * 1e3,
            "turn_2_ttft_ms": second.first_s[0] * 1e3, "turn_2_of_turn_1": second.first_s[0] / first.first_s[0],
        }

    def interleaved(self, asked: Conversation) -> dict[str, Any]:
        """Two conversations that take turns: the first one's turn 2, with the other's turn 1 in between."""
        salt, (document, other) = self._salt(), self._prompts(2, asked.document)
        first = self._timed([document], asked.output, salt)
        self._timed([other], asked.output, salt)
        again = [*document, *first.completions[0].tokens, *self._prompts(1, asked.question)[0]]
        before = self._core.stats()
        second = self._timed([again], asked.output, salt)
        after = self._core.stats()
        return {
            "cached_tokens": second.completions[0].cached_tokens, "turn_2_ttft_ms": second.first_s[0] * 1e3,
            "restores": after.restores_total - before.restores_total, "ssd_hits": after.ssd_hits_total - before.ssd_hits_total,
            "restore_ms": {
                late.tier: (late.sum_s - early.sum_s) * 1e3
                for early, late in zip(before.restore_times, after.restore_times, strict=True) if late.counts != early.counts
            },
        }

    def crowd(self, asked: Crowd) -> dict[str, Any]:
        """The time of all at once, and of its parts: what they share computed alone, and all at once behind that.

        Each part is timed with prompts, and a salt, of its own.
        """
        alone_salt, shared = self._salt(), self._prompts(1, asked.shared)[0]
        prefix = self._timed([shared], 1, alone_salt)
        behind = self._timed(self._beginning_with(shared, asked), asked.output, alone_salt)
        together = self._timed(self._beginning_with(self._prompts(1, asked.shared)[0], asked), asked.output, self._salt())
        return {
            "users": asked.users, "shared_tokens": asked.shared, "question_tokens": asked.question,
            "output_tokens": asked.output, "cached_tokens": sum(each.cached_tokens for each in together.completions),
            "ttft_ms": spread_ms(together.first_s), "all_s": together.all_s, "prefix_s": prefix.all_s,
            "behind_prefix_s": behind.all_s, "of_parts": together.all_s / (prefix.all_s + behind.all_s),
        }

    def _beginning_with(self, shared: list[int], asked: Crowd) -> list[list[int]]:
        return [[*shared, *question] for question in self._prompts(asked.users, asked.question)]

    def _settle(self) -> None:
        """What was computed goes where it is kept, as in a server that has nothing to do for a moment."""
        for _ in range(_IDLE_STEPS):
            self._core.step()
        while self._core.stats().ssd_waiting:
            sleep(_POLL_S)
            self._core.step()

    def _salt(self) -> str:
        return f"measured {next(self._names)}"

    def _timed(self, prompts: Sequence[list[int]], output: int, salt: str, opted_out: bool = False) -> Timed:
        seed = next(self._names)
        params = replace(SAMPLING, max_tokens=output, seed=seed, cache_salt=salt, cache_prompt=not opted_out)
        self.news.clear()
        began_s = perf_counter()
        completions = self.generate(prompts, params)
        ended_s, firsts = perf_counter(), dict[str, float]()
        self._settle()
        for news in self.news:
            firsts.setdefault(news.request, news.at_s)
        return Timed(tuple(completions), tuple(at - began_s for at in firsts.values()), ended_s - began_s)
