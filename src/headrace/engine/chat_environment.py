"""The Jinja environment of chat templates: what transformers gives them, in a sandbox that also bounds time and memory.

A template comes with a checkpoint, from anyone. The sandbox keeps it from Python's internals; beyond that a rendering may use
RENDER_CPU_S of processor time, looked at in every loop and macro, and build texts and lists of up to RENDER_CHARS.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import chain
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.errors import CheckpointError

RENDER_CPU_S = 5.0
RENDER_CHARS = 64 * 2**20
_TICK = "_headrace_tick"


class TemplateRefusal(jinja2.TemplateError):
    """The template called raise_exception."""


class TemplateTooCostly(Exception):
    """A rendering that went over RENDER_CPU_S or RENDER_CHARS."""


class CompiledTemplate:
    """A template that is compiled once. Raises CheckpointError naming the line of a syntax error."""

    def __init__(self, source: str) -> None:
        environment = _environment()
        try:
            tree = environment.parse(source)
            _count_rounds(tree)
            self._template = environment.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(f"chat template, line {error.lineno}: {error.message}") from None
        except RecursionError:
            raise CheckpointError("chat template: nested too deeply") from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. Raises whatever the template does; TemplateTooCostly where it goes over a limit."""
        parts: list[str] = []
        chars = 0
        for part in self._template.generate({**variables, _TICK: _ticker()}):
            parts.append(part)
            chars += len(part)
            _check_size(chars)
        return "".join(parts)


def _check_size(size: int) -> None:
    if size > RENDER_CHARS:
        raise TemplateTooCostly(f"it made a text or list of more than {RENDER_CHARS} characters or entries")


def _ticker() -> Callable[[], None]:
    """A function for every round of a loop; it raises once the thread has worked for too long."""
    until_s = time.thread_time() + RENDER_CPU_S
    rounds = 0

    def tick() -> None:
        nonlocal rounds
        rounds += 1
        if rounds % 64 == 0 and time.thread_time() > until_s:
            raise TemplateTooCostly(f"it took more than {RENDER_CPU_S:g} s")

    return tick


def _count_rounds(tree: nodes.Template) -> None:
    """Make every loop and macro call the ticker first."""
    loops, macros, calls = tree.find_all(nodes.For), tree.find_all(nodes.Macro), tree.find_all(nodes.CallBlock)
    for node in chain[nodes.For | nodes.Macro | nodes.CallBlock](loops, macros, calls):
        tick = nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(tick).set_lineno(node.lineno))


class _Sandbox(ImmutableSandboxedEnvironment):
    """Also refuses sums, products and powers that would fill the memory."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            if isinstance(left, str | list) and isinstance(right, str | list):
                _check_size(len(left) + len(right))
            return left + right
        if operator == "**":
            _check_size(len(str(left)) * int(abs(right)))
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(count, int):
                _check_size(len(sequence) * count)
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}`, which marks the assistant's part for training: only its body matters here."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _environment() -> _Sandbox:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: Jinja's own filter would escape HTML and sort keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateRefusal(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
