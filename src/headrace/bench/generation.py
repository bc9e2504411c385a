"""LLM.generate, watched: when each token came. And a prompt that arrives while others decode."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Any

import torch

from headrace.bench.summary import percentile, spread_ms
from headrace.engine.collector import Collector
from headrace.llm import LLM
from headrace.types import Request, SamplingParams, TokenEvent

SAMPLING = SamplingParams(temperature=1.0, top_k=20, top_p=0.95, ignore_eos=True)
FIRST_TOKENS = 32
"""Of each decoding row, before a prompt arrives beside them."""


@dataclass(frozen=True, slots=True)
class Load:
    """`users` prompts of `prompt` tokens at once, each answered by `output` tokens."""

    users: int
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """A prompt of `prompt` tokens that arrives while `rows` sequences of `context` tokens and more decode."""

    rows: int
    context: int
    prompt: int


@dataclass(frozen=True, slots=True)
class News:
    """`tokens` tokens of a request, at a time of the performance counter."""

    at_s: float
    request: str
    tokens: int


class WatchedLLM(LLM):
    """Remembers every event that has tokens."""

    def __init__(self, model: Any, **settings: Any) -> None:
        super().__init__(model, **settings)
        self.news: list[News] = []
        self._names = count()

    def measure(self, load: Load) -> dict[str, Any]:
        """Figures of one call of `generate`."""
        params = replace(SAMPLING, max_tokens=load.output, seed=next(self._names))
        prompts = self._prompts(load.users, load.prompt)
        self.news.clear()
        began_s = time.perf_counter()
        self.generate(prompts, params)
        return {"users": load.users, "prompt_tokens": load.prompt, "output_tokens": load.output} | generated(
            load, began_s, time.perf_counter(), self.news
        )

    def measure_arrival(self, arrival: Arrival) -> dict[str, Any]:
        """Figures of the decoding rows while the prompt is computed, and of that beside the prompt alone."""
        alone = self.measure(Load(1, arrival.prompt, 1))
        room = self.info.context - arrival.context
        rows = [self._request(prompt, room) for prompt in self._prompts(arrival.rows, arrival.context)]
        (late,) = (self._request(prompt, 1) for prompt in self._prompts(1, arrival.prompt))
        self.news.clear()
        for request in rows:
            self._core.add(request)
        while len({news.request for news in self.news}) < arrival.rows or len(self.news) < FIRST_TOKENS * arrival.rows:
            self._step()
        arrived_s, steps_s = time.perf_counter(), []
        self._core.add(late)
        while not any(news.request == late.id for news in self.news):
            before_s = time.perf_counter()
            self._step()
            steps_s.append(time.perf_counter() - before_s)
        for request in rows:
            self._core.cancel(request.id)
        while self._core.has_work:
            self._core.step()
        found = {"rows": arrival.rows, "context": arrival.context, "prompt_tokens": arrival.prompt}
        return found | beside(arrival, alone, arrived_s, steps_s, self.news, late.id)

    def _step(self) -> None:
        events = self._core.step()
        now_s = time.perf_counter()
        self.news += [News(now_s, event.request, len(event.tokens)) for event in events if event.tokens]

    def _take(self, choice: Collector, event: TokenEvent) -> None:
        if event.tokens:
            self.news.append(News(time.perf_counter(), event.request, len(event.tokens)))
        super()._take(choice, event)

    def _prompts(self, users: int, tokens: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(next(self._names))
        found: list[list[int]] = torch.randint(0, self.info.vocab_size, (users, tokens), generator=generator).tolist()
        return found

    def _request(self, prompt: Sequence[int], max_tokens: int) -> Request:
        number = next(self._names)
        return Request(f"measured-{number}", tuple(prompt), SAMPLING, number, max_tokens)


def generated(load: Load, began_s: float, ended_s: float, news: Sequence[News]) -> dict[str, Any]:
    """Times to first tokens; prompt tokens a second until the last of these; and from there until the first answer is complete,
    all users decoding, output tokens a second and the time between a user's tokens.
    """
    firsts: dict[str, float] = {}
    totals: dict[str, int] = {}
    complete_s = ended_s
    for each in news:
        firsts.setdefault(each.request, each.at_s)
        totals[each.request] = totals.get(each.request, 0) + each.tokens
        if totals[each.request] >= load.output:
            complete_s = min(complete_s, each.at_s)
    all_s = max(firsts.values())
    together = [each for each in news if all_s < each.at_s <= complete_s]
    decoding = sum(each.tokens for each in together) / (complete_s - all_s) if together else None
    return {
        "ttft_ms": spread_ms(at - began_s for at in firsts.values()),
        "prompt_tokens_per_s": load.users * load.prompt / (all_s - began_s),
        "decode_tokens_per_s": decoding,
        "itl_ms": spread_ms(gaps_s(news, all_s, complete_s)),
        "output_tokens_per_s": sum(totals.values()) / (ended_s - began_s),
    }


def gaps_s(news: Sequence[News], from_s: float, to_s: float) -> Iterator[float]:
    """Seconds between a request's neighbouring tokens, the later one after from_s and not after to_s; several tokens at once
    share the time since those before.
    """
    by_request: dict[str, list[News]] = {}
    for each in news:
        by_request.setdefault(each.request, []).append(each)
    for events in by_request.values():
        for earlier, later in pairwise(events):
            if from_s < later.at_s <= to_s:
                yield from [(later.at_s - earlier.at_s) / later.tokens] * later.tokens


def beside(
    arrival: Arrival, alone: dict[str, Any], arrived_s: float, steps_s: Sequence[float], news: Sequence[News], late: str
) -> dict[str, Any]:
    """What the arrival cost the rows, and what the rows cost it. mixed_step_ms: the median of the steps meanwhile."""
    first_s = next(each.at_s for each in news if each.request == late)
    gaps = sorted(gaps_s([each for each in news if each.request != late], arrived_s, first_s))
    step_s, p95_s = percentile(sorted(steps_s), 50), percentile(gaps, 95)
    rate = arrival.prompt / (first_s - arrived_s)
    return {
        "mixed_step_ms": step_s * 1e3, "itl_ms": spread_ms(gaps), "p95_over_step": p95_s / step_s,
        "prompt_tokens_per_s": rate, "alone_tokens_per_s": alone["prompt_tokens_per_s"],
        "of_alone": rate / alone["prompt_tokens_per_s"],
    }
