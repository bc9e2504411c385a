"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from headrace.errors import RequestError
from headrace.server.schemas.sampling import GenerationBody, Int, Int32
from headrace.types import MAX_LOGPROBS, SamplingParams

_NO_EFFORT = frozenset({"none", "off", "disabled", "false", "no", "0", ""})


def _thinks(param: str, effort: object) -> bool:
    if not isinstance(effort, str):
        raise RequestError(f"{param} must name an effort, not {effort!r}", param=param)
    return effort.strip().lower() not in _NO_EFFORT


class ChatBody(GenerationBody, kw_only=True):
    messages: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    reasoning: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    logprobs: bool | None = None
    top_logprobs: Int32 | None = None
    max_completion_tokens: Int | None = None

    # How tokens are drawn

    def params(self) -> SamplingParams:
        self.refuse_unsupported()
        self._refuse_tools()
        name, limit = "max_completion_tokens", self.max_completion_tokens
        if limit is None:
            name, limit = "max_tokens", self.max_tokens
        if limit is not None and limit <= 0:
            raise RequestError(f"{name} must be at least 1, not {limit}", param=name)
        if self.stream and self.prompt_logprobs is not None:
            raise RequestError("prompt_logprobs of a chat cannot be streamed", param="prompt_logprobs")
        return self.sampling_params(max_tokens=limit, logprobs=self._alternatives(), prompt_logprobs=self.prompt_logprobs)

    def _alternatives(self) -> int | None:
        count = self.top_logprobs
        if count is not None and not 0 <= count <= MAX_LOGPROBS:
            raise RequestError(f"top_logprobs must be from 0 to {MAX_LOGPROBS}, not {count}", param="top_logprobs")
        if count and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
        return (count or 0) if self.logprobs else None

    def _refuse_tools(self) -> None:
        """Tool calls are not parsed, so tools may only come with tool_choice "none", which keeps them out of the prompt."""
        if self.tools and self.tool_choice != "none":
            raise RequestError('tools are not supported, except with tool_choice "none"', param="tools",
                               code="unsupported_parameter")
        if self.tool_choice not in (None, "none", "auto"):
            raise RequestError("tool_choice is not supported", param="tool_choice", code="unsupported_parameter")

    # How messages become a prompt

    def generation_prompt(self) -> bool:
        """Whether the header of an assistant's turn ends the prompt: yes, unless the last message is to be continued."""
        if self.continue_final_message and self.add_generation_prompt:
            raise RequestError("add_generation_prompt and continue_final_message exclude each other",
                               param="add_generation_prompt")
        return not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt

    def template_kwargs(self) -> dict[str, Any]:
        """Variables for the template. What chat_template_kwargs says rules over the other ways to switch thinking."""
        kwargs = dict(self.chat_template_kwargs or {})
        for param, effort in self._efforts():
            kwargs.setdefault("enable_thinking", _thinks(param, effort))
        if self.reasoning_effort is not None and kwargs["enable_thinking"]:
            kwargs.setdefault("reasoning_effort", self.reasoning_effort)
        return kwargs

    def _efforts(self) -> list[tuple[str, object]]:
        said = (
            ("reasoning_effort", self.reasoning_effort),
            ("reasoning", (self.reasoning or {}).get("effort")),
            ("thinking", (self.thinking or {}).get("type")),
        )
        return [(param, effort) for param, effort in said if effort is not None]
