"""Log-probabilities that an engine gives to texts, through the very steps in which it would write them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from headrace.bench.running import unfailed
from headrace.config import EngineConfig
from headrace.engine.build import build_engine
from headrace.engine.core import EngineCore
from headrace.errors import HeadraceError
from headrace.plan.checkpoint import Model
from headrace.scheduler.drafter import Drafter
from headrace.scheduler.scheduler import Scheduler
from headrace.speculate.pace import FixedPace, Pace
from headrace.types import MOST_DRAFTS, Request, SamplingParams, TokenEvent

Watch = Callable[[Mapping[str, int], Mapping[str, int]], None]
"""Told by request id, after every step: tokens that there are, and accepted drafts of the newest row if any were proposed."""
_SCORED = SamplingParams(temperature=0.0, logprobs=0, prompt_logprobs=0, ignore_eos=True)


class TrueDrafts:
    """A drafter that knows the texts, by request id. A row has any number of drafts up to `most`; any number of them is what
    follows, and the others are not.

    accepted: of each request's newest row. pairs: how many rows had so many drafts, of which so many were right.
    """

    def __init__(self, texts: Mapping[str, Sequence[int]], most: int, vocab_size: int, rng: random.Random) -> None:
        self.most, self._texts, self._vocab_size, self._rng = most, texts, vocab_size, rng
        self.pairs: Counter[tuple[int, int]] = Counter()
        self.accepted: dict[str, int] = {}
        self._yields: dict[str, list[int]] = {}  # of each request's rows that were asked for

    def propose(self, request: Request, output: Sequence[int], unseen: int, most: int) -> tuple[int, ...]:
        yields = self._yields.setdefault(request.id, [])
        known = len(output) + (sum(yields[-unseen:]) if unseen and yields else unseen)  # a prompt's last row yields one
        begin = len(request.prompt) + known
        following = self._texts[request.id][begin : begin + self._rng.randint(0, most)]
        right = self._rng.randint(0, len(following))
        self.pairs[len(following), right] += 1
        self.accepted[request.id] = right
        yields.append(1 + right)
        wrong = ((token + 1 + self._rng.randrange(self._vocab_size - 1)) % self._vocab_size for token in following[right:])
        return (*following[:right], *wrong)


@dataclass(frozen=True, slots=True)
class Followed:
    """Texts of n tokens each: logprobs [n - 1], from the second token on. pairs: how many rows had so many drafts, so many of
    them right.
    """

    logprobs: tuple[np.ndarray, ...]
    pairs: Counter[tuple[int, int]]


@dataclass
class _Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def take(self, event: TokenEvent) -> None:
        self.tokens += unfailed(event).tokens
        self.logprobs += (entry.logprob for entry in (*event.prompt_logprobs, *event.logprobs))


class Teacher:
    """An engine whose sequences follow given texts, or go on by themselves. most: drafts of a row, of a drafter on the host
    that knows the text; 0 leaves drafts to what the settings name.
    """

    def __init__(self, model: Model, config: EngineConfig, most: int = MOST_DRAFTS) -> None:
        host = TrueDrafts({}, most, model.spec.vocab_size, random.Random(0)) if most else None
        self.built = build_engine(model, config, None, host)
        self.info, self.runner = self.built.info, self.built.runner
        self.most = self.runner.layout.drafts
        self._names = count()

    def through_prompts(self, texts: Sequence[Sequence[int]]) -> Followed:
        """Computed as prompts, in chunks."""
        return self._follow(texts, [len(text) - 1 for text in texts])

    def through_steps(self, texts: Sequence[Sequence[int]], watch: Watch | None = None) -> Followed:
        """Every token but the first is generated, one a step."""
        return self._follow(texts, [1] * len(texts), watch)

    def through_drafts(self, texts: Sequence[Sequence[int]], watch: Watch | None = None, seed: int = 0) -> Followed:
        """The same with drafts: any number that a row has room for, of which any number is right."""
        return self._follow(texts, [1] * len(texts), watch, random.Random(seed))

    def go_on(self, prompts: Sequence[Sequence[int]], length: int, drafts: int) -> tuple[list[tuple[int, ...]], float]:
        """What the model itself writes behind prompts, at temperature 1, until all are `length` tokens long, with so many
        drafts a row; and how many tokens a row yielded.
        """
        pace = FixedPace(self.most, drafts) if self.most else None
        params = SamplingParams(ignore_eos=True)
        requests = [
            Request(self._name(), tuple(prompt), params, number, length - len(prompt)) for number, prompt in enumerate(prompts)
        ]
        core = self._core(None, pace)
        answers = _run(core, requests)
        stats = core.stats()
        rows = stats.generation_tokens_total - sum(stats.accepted)
        texts = [(*request.prompt, *answers[request.id].tokens) for request in requests]
        return texts, stats.generation_tokens_total / rows

    def close(self) -> None:
        self.built.core.close()

    def _follow(
        self, texts: Sequence[Sequence[int]], prompts: Sequence[int], watch: Watch | None = None,
        rng: random.Random | None = None,
    ) -> Followed:
        requests = [
            Request(self._name(), tuple(text[:first]), _SCORED, 0, len(text) - first)
            for text, first in zip(texts, prompts, strict=True)
        ]
        by_id = {request.id: text for request, text in zip(requests, texts, strict=True)}
        drafter = TrueDrafts(by_id, self.most, self.info.vocab_size, rng) if rng else None
        self.runner.follow(by_id)
        try:
            answers = _run(self._core(drafter, None), requests, drafter, watch)
        finally:
            self.runner.follow({})
        for request in requests:
            if answers[request.id].tokens != list(by_id[request.id][len(request.prompt) :]):
                raise HeadraceError(f"request {request.id} left its text")
        logprobs = tuple(np.array(answers[request.id].logprobs) for request in requests)
        return Followed(logprobs, drafter.pairs if drafter else Counter())

    def _core(self, drafter: Drafter | None, pace: Pace | None) -> EngineCore:
        scheduler = Scheduler(self.runner.layout, chunk_tokens=self.info.chunk_tokens, drafter=drafter, pace=pace)
        return EngineCore(scheduler, self.runner, depth=self.built.core.depth)

    def _name(self) -> str:
        return f"text-{next(self._names)}"


def _run(
    core: EngineCore, requests: Sequence[Request], drafter: TrueDrafts | None = None, watch: Watch | None = None
) -> dict[str, _Answer]:
    answers = {request.id: _Answer() for request in requests}
    for request in requests:
        core.add(request)
    while core.has_work:
        for event in core.step():
            answers[event.request].take(event)
        if watch is not None:
            lengths = {request.id: len(request.prompt) + len(answers[request.id].tokens) for request in requests}
            watch(lengths, drafter.accepted if drafter else {})
    return answers
