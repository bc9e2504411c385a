"""The fields that every generating route takes; null means absent everywhere."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from headrace.errors import RequestError
from headrace.types import SamplingParams

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]

_SAME_NAME = (
    "n", "seed", "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "prompt_logprobs", "stop_token_ids", "min_tokens", "ignore_eos", "cache_prompt", "cache_salt",
)

_REFUSED: dict[str, tuple[object, ...]] = {
    "audio": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"], []),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "grammar": (),
    "use_beam_search": (False,),
}


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(msgspec.Struct, kw_only=True):
    """What chat and plain completions have in common. Fields that are not listed are accepted and ignored."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Int | None = None
    seed: Int | None = None
    temperature: float | None = None
    top_k: Int32 | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    prompt_logprobs: Int32 | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int] | None = None
    min_tokens: Int | None = None
    max_tokens: Int | None = None
    ignore_eos: bool | None = None
    cache_prompt: bool | None = None
    cache_salt: str | None = None
    skip_special_tokens: bool | None = None

    audio: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    grammar: Any = None
    use_beam_search: Any = None

    def refuse_unsupported(self) -> None:
        """Raises RequestError for a field whose meaning headrace cannot honour; ignoring it would give wrong answers."""
        for name, harmless in _REFUSED.items():
            value = getattr(self, name)
            if value is not None and value not in harmless:
                raise RequestError(f"{name} is not supported", param=name, code="unsupported_parameter")

    def sampling_params(self, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None) -> SamplingParams:
        """Raises RequestError naming the field at fault."""
        given = {name: getattr(self, name) for name in _SAME_NAME}
        given |= {"max_tokens": max_tokens, "logprobs": logprobs, "prompt_logprobs": prompt_logprobs}
        given |= {"logit_bias": _token_biases(self.logit_bias), "stop": self.stop or None}
        return SamplingParams(**{name: value for name, value in given.items() if value is not None})


def _token_biases(given: dict[str, float] | None) -> dict[int, float] | None:
    if given is None:
        return None
    for key in given:
        if not (key.isascii() and key.isdigit() and len(key) <= 18):
            raise RequestError(f"logit_bias must be keyed by token ids, not {key!r}", param="logit_bias")
    return {int(key): bias for key, bias in given.items()}
