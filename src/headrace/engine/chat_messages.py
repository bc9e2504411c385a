"""Messages as clients send them, to messages as chat templates expect them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import RequestError

Message = dict[str, Any]

_ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TEXT_PARTS = ("text", "input_text", "output_text")
_SYSTEM_ROLES = ("system", "developer")
_INSTEAD = ("tool_calls", "function_call", "reasoning_content", "reasoning")
"""Fields of an assistant's message beside which it may have no content."""


def normal_messages(messages: object) -> list[Message]:
    """Copies in which equal meanings look equal, so that they render to equal bytes.

    Absent and null fields are left out, and empty reasoning and tool calls. content is always there, a string: text parts are
    joined as they are; "" where a tool returned nothing, or the assistant called tools or thought and no more. The arguments
    of tool calls are objects. Raises RequestError naming the field, as in `messages[2].content`.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise RequestError("messages must be a list of at least one message", param="messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def with_systems_moved(messages: list[Message]) -> list[Message] | None:
    """The messages for a template that takes one system message, at the start; None if they are like that already.

    System messages at the start become one, joined by an empty line. Any later one stays in its place as a user message, so
    that what is rendered before it does not change.
    """
    systems = [message["role"] in _SYSTEM_ROLES for message in messages]
    leading = systems.index(False) if False in systems else len(systems)
    if leading < 2 and not any(systems[leading:]):
        return None
    joined = "\n\n".join(message["content"] for message in messages[:leading])
    first = [{**messages[0], "content": joined}] if leading else []
    later = [{**message, "role": "user"} if message["role"] in _SYSTEM_ROLES else message for message in messages[leading:]]
    return first + later


def _message(message: object, where: str) -> Message:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be an object", param=where)
    role = message.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise RequestError(f"{where}.role must be a word such as user or assistant, not {role!r}", param=f"{where}.role")
    normal = {key: value for key, value in message.items() if value is not None}
    if "content" not in normal and role != "tool" and not (role == "assistant" and any(field in normal for field in _INSTEAD)):
        raise RequestError(f"{where}.content is missing", param=f"{where}.content")
    normal["content"] = _content(normal.get("content", ""), f"{where}.content")
    if normal.get("reasoning_content") == "":
        del normal["reasoning_content"]
    if "tool_calls" in normal:
        normal["tool_calls"] = _tool_calls(normal["tool_calls"], f"{where}.tool_calls")
        if not normal["tool_calls"]:
            del normal["tool_calls"]
    return normal


def _content(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(f"{where} must be a string or a list of parts", param=where)
    return "".join(_part(part, where) for part in content)


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind not in _TEXT_PARTS:
        raise RequestError(f"{where}: a part of type {kind!r} is not supported, this model takes text", param=where)
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{where}: a text part has no text", param=where)
    return text


def _tool_calls(calls: object, where: str) -> list[Any]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise RequestError(f"{where} must be a list", param=where)
    return [_tool_call(call, f"{where}[{index}]") for index, call in enumerate(calls)]


def _tool_call(call: object, where: str) -> Message:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where} must name a function", param=where)
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    normal = {**function, "arguments": arguments}
    return {**call, "function": normal} if "function" in call else normal


def _arguments(arguments: object, where: str) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{where} is not JSON: {error}", param=where) from None
    if not isinstance(arguments, Mapping | None):
        raise RequestError(f"{where} must be an object", param=where)
    return dict(arguments or {})
