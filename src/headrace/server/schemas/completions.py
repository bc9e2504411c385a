"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

from headrace.errors import RequestError
from headrace.server.schemas.sampling import GenerationBody, Int, Int32
from headrace.types import SamplingParams

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this route."""


class CompletionBody(GenerationBody, kw_only=True):
    """prompt: a string, a list of strings, a list of token ids, or a list of lists of token ids."""

    prompt: Any = None
    echo: bool | None = None
    logprobs: Int32 | None = None
    best_of: Int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None

    @property
    def scores_only(self) -> bool:
        """Whether nothing is to be generated: the prompt is echoed, with its log-probabilities if asked for."""
        return self.max_tokens == 0 and bool(self.echo)

    def params(self) -> SamplingParams:
        """A scoring request draws one token, which is dropped: the engine has no request without one."""
        self.refuse_unsupported()
        self._refuse_legacy()
        max_tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        if max_tokens <= 0 and not self.scores_only:
            raise RequestError(f"max_tokens must be at least 1 (or 0 with echo), not {max_tokens}", param="max_tokens")
        of_prompt = self.prompt_logprobs
        if self.echo and self.logprobs is not None:
            of_prompt = max(self.logprobs, of_prompt or 0)
        return self.sampling_params(max_tokens=max(1, max_tokens), logprobs=self.logprobs, prompt_logprobs=of_prompt)

    def _refuse_legacy(self) -> None:
        if self.suffix:
            raise RequestError("suffix (insertion) is not supported", param="suffix", code="unsupported_parameter")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise RequestError("best_of is only supported when it equals n", param="best_of", code="unsupported_parameter")

    def prompts(self) -> list[str | tuple[int, ...]]:
        """The prompts one by one. Raises RequestError unless `prompt` has one of its four shapes, with nothing empty."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if prompt is None:
            raise RequestError("prompt is required", param="prompt")
        if not isinstance(prompt, list) or not prompt:
            raise RequestError("prompt must be a string or a list that is not empty", param="prompt")
        if _are_tokens(prompt):
            return [tuple(prompt)]
        return [_one_prompt(index, each) for index, each in enumerate(prompt)]


def _are_tokens(values: list[Any]) -> bool:
    return all(type(value) is int for value in values)  # a bool is an int, but not a token


def _one_prompt(index: int, prompt: object) -> str | tuple[int, ...]:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and _are_tokens(prompt):
        return tuple(prompt)
    raise RequestError(f"prompt[{index}] must be a string or a list of token ids", param="prompt")
