"""An engine in this process that goes on with real texts, with any number of drafts: what it takes, and what is accepted."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count

from headrace.bench.held_out import TextPrompt
from headrace.bench.running import give_up, measured_costs, unfailed
from headrace.config import EngineConfig
from headrace.engine.build import build_engine
from headrace.engine.core import EngineCore
from headrace.engine.model_source import find_model, find_tokenizer
from headrace.engine.requests import build_requests
from headrace.errors import ConfigError
from headrace.scheduler.scheduler import Scheduler
from headrace.speculate.costs import StepCosts
from headrace.speculate.pace import FixedPace, MeasuredPace, Pace
from headrace.types import Request, SamplingParams


@dataclass(frozen=True, slots=True)
class DecodedStep:
    """One of a request behind its prompt: drafts that were verified, and tokens that it yielded. cut: its answer was full."""

    request: str
    drafts: int
    tokens: int
    cut: bool


@dataclass(frozen=True, slots=True)
class Together:
    """Steps in which all users decode: tokens that they yielded, drafts that were verified, and seconds."""

    steps: int = 0
    tokens: int = 0
    drafts: int = 0
    seconds: float = 0.0

    def __add__(self, other: Together) -> Together:
        return Together(
            self.steps + other.steps, self.tokens + other.tokens, self.drafts + other.drafts, self.seconds + other.seconds
        )


class TextEngine:
    """Nothing of one measurement is cached for another. most: the most drafts of a row."""

    def __init__(self, model: str | None, config: EngineConfig) -> None:
        found = find_model(model, config)
        self.tokenizer = find_tokenizer(found, config)
        self.built = build_engine(found, config, None, pace=FixedPace(0, 0))  # paces are given to each measurement
        self.info, self._runner = self.built.info, self.built.runner
        self.most = self._runner.layout.drafts
        self._names = count()

    def requests(self, prompts: Sequence[TextPrompt], params: SamplingParams, seeded: bool) -> list[Request]:
        """seeded: with the same seeds at every call."""
        made: list[Request] = []
        for number, prompt in enumerate(prompts):
            own = SamplingParams(
                temperature=params.temperature, max_tokens=params.max_tokens, ignore_eos=params.ignore_eos,
                seed=number if seeded else None,
            )
            name = f"{prompt.kind}/{next(self._names)}"
            made += build_requests(name, prompt.tokens, own, self.info, self.tokenizer.eos_ids, time.monotonic())
        return made

    def fixed(self, drafts: int) -> Pace | None:
        """Raises ConfigError for more drafts than a row can have."""
        if drafts > self.most:
            raise ConfigError(f"{drafts} drafts: a row has {self.most} at the most")
        return FixedPace(self.most, drafts) if self.most else None

    @cached_property
    def costs(self) -> StepCosts:
        """Measured once, before any request; steps run as what is fastest from then on. Raises ConfigError without graphs."""
        return measured_costs(self._runner, self.info.context)

    def device_s(self, users: int, drafts: int) -> float:
        """Of the device for a step of so many rows with so many drafts each, and for making them."""
        drafting = self.costs.drafting(users, self.most)[drafts]
        return float(self.costs.stairs(users)[users * drafts] + drafting)

    def controller(self) -> Pace:
        """What the engine itself would do."""
        return MeasuredPace(self._runner.layout.slots, self.most, self.costs)

    def core(self, pace: Pace | None) -> EngineCore:
        scheduler = Scheduler(self._runner.layout, chunk_tokens=self.info.chunk_tokens, pace=pace)
        return EngineCore(scheduler, self._runner, depth=self.built.core.depth)

    def follow(self, requests: Sequence[Request], pace: Pace | None) -> Iterator[DecodedStep]:
        """All steps of all requests, by each one's own counts."""
        core, drafted, room = self.core(pace), dict[str, int](), {request.id: request.max_tokens for request in requests}
        for request in requests:
            core.add(request)
        while core.has_work:
            for event in core.step():
                before = drafted.get(event.request)
                drafted[event.request] = unfailed(event).drafted_tokens
                room[event.request] -= len(event.tokens)
                if event.tokens and before is not None:
                    cut = not room[event.request]
                    yield DecodedStep(event.request, event.drafted_tokens - before, len(event.tokens), cut)

    def together(self, requests: Sequence[Request], pace: Pace | None) -> Together:
        """From where all of them have a token until one is complete. The others are given up."""
        core, waiting = self.core(pace), {request.id for request in requests}
        for request in requests:
            core.add(request)
        while waiting:
            waiting -= {unfailed(event).request for event in core.step() if event.tokens}
        steps, tokens, drafts, began = 0, 0, 0, time.perf_counter()
        while len(core.open_requests) == len(requests):
            tokens += sum(len(event.tokens) for event in core.step())
            drafts += pace.chosen if pace is not None else 0
            steps += 1
        seconds = time.perf_counter() - began
        give_up(core)
        return Together(steps, tokens, drafts, seconds)

    def settle(self) -> None:
        """As a server does behind its start: what is there by now is not collected, which would take milliseconds at a time."""
        gc.collect()
        gc.freeze()

    def close(self) -> None:
        gc.unfreeze()
        self.built.core.close()
