"""The engine in the caller's own process: no server, no other process, no thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from headrace.config import EngineConfig, from_settings
from headrace.engine.build import build_engine
from headrace.engine.collector import Collector
from headrace.engine.interrupt import DeferredInterrupt
from headrace.engine.model_source import find_model, find_tokenizer
from headrace.engine.requests import build_requests
from headrace.engine.tokenizer import Tokenizer
from headrace.errors import HeadraceError, RequestError
from headrace.types import Completion, EngineInfo, SamplingParams, TokenEvent

Prompt = str | Sequence[int]


class LLM:
    """A model, loaded and ready.

    model: a Hugging Face directory, a GGUF file, or "lab", the lab model; None is the demo model, or the shape that
    random_weights names. device, dtype and the other settings are those of `headrace serve`, with underscores
    (`config.EngineConfig`). Raises CheckpointError and ConfigError. Threads take turns. memory: on a GPU, bytes of each part,
    planned and taken.
    """

    def __init__(
        self, model: str | os.PathLike[str] | None = None, *, device: str = "auto", dtype: str = "auto", **settings: Any
    ) -> None:
        config: EngineConfig = from_settings(EngineConfig, {"device": device, "dtype": dtype, **settings})
        found = find_model(model, config)
        self.tokenizer: Tokenizer = find_tokenizer(found, config)
        built = build_engine(found, config, None)
        self.info: EngineInfo = built.info
        self.memory: Mapping[str, tuple[int, int]] = built.memory
        self._core = built.core
        self._turn = threading.Lock()

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """Complete each prompt: `n` completions of the first, then of the second, and so on.

        prompts: one or a list of strings or token-id lists. params: for all of them, or one for each; None samples with the
        defaults. Raises RequestError, before anything runs, naming the prompt that can never work. Ctrl-C cancels what
        runs; the LLM can be used again.
        """
        all_prompts = _as_list(prompts)
        choices = [
            choice for index, each in enumerate(_one_for_each(params, len(all_prompts)))
            for choice in self._choices(index, all_prompts[index], each)
        ]
        with self._turn:
            self._run({choice.request.id: choice for choice in choices})
        return [choice.completion() for choice in choices]

    def close(self) -> None:
        """Free the model's memory. The LLM cannot be used afterwards."""
        with self._turn:
            self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _choices(self, index: int, prompt: Prompt, params: SamplingParams) -> list[Collector]:
        try:
            tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else _as_tokens(prompt)
            requests = build_requests(str(index), tokens, params, self.info, self.tokenizer.eos_ids, time.monotonic())
        except RequestError as error:
            raise RequestError(f"prompt {index}: {error}", param=error.param, code=error.code) from None
        return [Collector(request, number, self.tokenizer) for number, request in enumerate(requests)]

    def _run(self, choices: dict[str, Collector]) -> None:
        with DeferredInterrupt() as interrupt:
            try:
                for choice in choices.values():
                    self._core.add(choice.request)
                while self._core.has_work:
                    for event in self._core.step():
                        self._take(choices[event.request], event)
                    interrupt.check()
            except BaseException:
                self._abort(choices)
                raise

    def _take(self, choice: Collector, event: TokenEvent) -> None:
        if event.finish_reason == "error":
            raise HeadraceError(f"request {event.request} failed: {event.error}")
        running = event.finish_reason is None
        choice.push(event)
        if running and choice.finished:  # by a stop string, which the engine knows nothing of
            self._core.cancel(event.request)

    def _abort(self, choices: dict[str, Collector]) -> None:
        """Leave nothing behind in the engine."""
        for id in choices:
            self._core.cancel(id)
        while self._core.has_work:
            self._core.step()


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, or several: a sequence that starts with a number is one prompt of token ids."""
    if isinstance(prompts, str) or (len(prompts) and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]  # told apart by its first element
    return list(prompts)  # type: ignore[arg-type]


def _one_for_each(params: SamplingParams | Sequence[SamplingParams] | None, prompts: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * prompts
    if len(params) != prompts:
        raise RequestError(f"{len(params)} sampling parameters for {prompts} prompts: give one, or one for each")
    return list(params)


def _as_tokens(prompt: object) -> Sequence[int]:
    if isinstance(prompt, Sequence):
        return prompt
    raise RequestError(f"a prompt is a string or a list of token ids, not a {type(prompt).__name__}", param="prompt")
