"""Chat messages to a prompt, by the template of the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jinja2

from headrace.engine.chat_environment import CompiledTemplate, TemplateRefusal, TemplateTooCostly
from headrace.engine.chat_messages import Message, normal_messages, with_systems_moved
from headrace.engine.plain_text import marked, spans, strings_in, unused_characters
from headrace.engine.tokenizer import Tokenizer
from headrace.errors import RequestError

_SWITCHES = ("enable_thinking", "thinking", "preserve_thinking")
"""Template variables that are on or off. Templates test them in ways that take "false" or 0 for on."""
_OFF = ("false", "0", "off", "no", "none", "")
_ON = ("true", "1", "on", "yes")
_RESERVED = ("messages", "tools", "add_generation_prompt")


class _Input(NamedTuple):
    """Everything in a rendering that a client wrote."""

    messages: list[Message]
    tools: list[Any] | None
    variables: dict[str, Any]


class ChatTemplate:
    """A compiled chat template. Renders as transformers' `apply_chat_template` does; safe to share between threads.

    Where a template refuses a system message that is not the first, see `chat_messages.with_systems_moved`. The developer
    role is the system role unless the template knows it. Raises CheckpointError for a template that is not valid Jinja.
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        self.source = source
        self._template = CompiledTemplate(source)
        self._tokenizer = tokenizer
        self._knows_developer = "developer" in source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. continue_final_message: it ends inside the last message, for the model to go on with it.

        Raises RequestError when the template refuses the messages, and naming the field for messages that no template can take.
        """
        client = self._input(messages, tools, template_kwargs)
        return self._text(client, add_generation_prompt, continue_final_message)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The prompt's tokens. Text of control tokens in anything that the client wrote becomes plain tokens."""
        client = self._input(messages, tools, template_kwargs)
        pattern, encode = self._tokenizer.special_pattern, self._tokenizer.encode
        if not any(map(pattern.search, strings_in(client))):
            return encode(self._text(client, add_generation_prompt, continue_final_message), add_special=False)
        (mark,) = unused_characters((client, self.source), 1)
        text = self._text(_Input(*marked(client, pattern, mark)), add_generation_prompt, continue_final_message)
        ids: list[int] = []
        for part, parse_special in spans(text, pattern, mark):
            ids += encode(part, add_special=False, parse_special=parse_special)
        return ids

    def _input(self, messages: object, tools: object, template_kwargs: Mapping[str, Any] | None) -> _Input:
        if tools is not None and not (isinstance(tools, list | tuple) and all(isinstance(tool, Mapping) for tool in tools)):
            raise RequestError("tools must be a list of objects", param="tools")
        normal = normal_messages(messages)
        if not self._knows_developer:
            normal = [{**message, "role": "system"} if message["role"] == "developer" else message for message in normal]
        return _Input(normal, list(tools) if tools else None, self._variables(template_kwargs or {}))

    def _variables(self, template_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        for name in template_kwargs:
            if name in _RESERVED or name in self._tokenizer.special_tokens or name.startswith("_"):
                raise RequestError(f"chat_template_kwargs: {name} cannot be set", param="chat_template_kwargs")
        return {name: _switch(name, value) if name in _SWITCHES else value for name, value in template_kwargs.items()}

    def _text(self, client: _Input, add_generation_prompt: bool, continue_final_message: bool) -> str:
        if not continue_final_message:
            return self._attempt(client, add_generation_prompt)
        (end,) = unused_characters((client, self.source), 1)
        *before, last = client.messages
        messages = [*before, {**last, "content": f"{last['content']}{end} "}]
        text, found, after = self._attempt(client._replace(messages=messages), False).rpartition(end)
        if not found:
            raise RequestError("the chat template leaves out the last message, so it cannot be continued", param="messages")
        # A template that trims its messages took the space behind the mark; then the space before it has to go too.
        return text if after.startswith(" ") else text.rstrip()

    def _attempt(self, client: _Input, add_generation_prompt: bool) -> str:
        try:
            return self._fill(client, add_generation_prompt)
        except RequestError:
            moved = with_systems_moved(client.messages)
            if moved is None:
                raise
            return self._fill(client._replace(messages=moved), add_generation_prompt)

    def _fill(self, client: _Input, add_generation_prompt: bool) -> str:
        given = {"messages": client.messages, "tools": client.tools, "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render({"documents": None, **self._tokenizer.special_tokens, **client.variables, **given})
        except TemplateRefusal as error:
            raise RequestError(f"the chat template refuses the messages: {error}", param="messages") from None
        except TemplateTooCostly as error:
            raise RequestError(f"the chat template was stopped: {error}", param="messages") from None
        except jinja2.TemplateError as error:
            raise RequestError(f"the chat template cannot render the messages: {error}", param="messages") from None
        except Exception as error:  # the template runs on the client's data: whatever goes wrong is about those
            name = type(error).__name__
            raise RequestError(f"the chat template cannot render the messages: {name}: {error}", param="messages") from None


def _switch(name: str, value: object) -> bool:
    word = "none" if value is None else str(value).strip().lower()
    if word in _OFF or word in _ON:
        return word in _ON
    raise RequestError(f"chat_template_kwargs: {name} must be true or false, not {value!r}", param="chat_template_kwargs")
