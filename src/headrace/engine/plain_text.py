"""Keeps the text of control tokens that a client wrote apart from the control tokens that a template writes.

Before rendering, a mark is put behind every character of such text; afterwards whatever holds marks is client text, and what
spells a control token without marks is the template's. The mark is a character that the client's strings do not contain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from headrace.errors import RequestError

_MARKS = [*map(chr, chain(range(0xFDD0, 0xFDF0), range(0xF0000, 0xF1000)))]
"""Noncharacters, then private characters: no text has a use for all of them."""
_MAX_DEPTH = 200


def unused_characters(value: object, count: int) -> list[str]:
    """`count` characters that no string in `value` contains."""
    used = set().union(*strings_in(value))
    free = [mark for mark in _MARKS if mark not in used]
    if len(free) < count:
        raise RequestError("the messages use too many private characters", param="messages")
    return free[:count]


def strings_in(value: object) -> Iterator[str]:
    """Every string in a structure of lists and mappings, keys included. Raises RequestError if it is nested too deeply."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        below: list[object] = []
        for entry in level:
            if isinstance(entry, str):
                yield entry
            elif isinstance(entry, Mapping):
                below += [*entry.keys(), *entry.values()]
            elif isinstance(entry, Sequence):
                below += entry
        level = below
    if level:
        raise RequestError(f"the messages or tools are nested more than {_MAX_DEPTH} levels deep", param="messages")


def marked(value: Any, pattern: re.Pattern[str], mark: str) -> Any:
    """A copy of `value` in which text that matches `pattern` has a mark behind each of its characters."""
    return _mapped(value, lambda text: pattern.sub(lambda match: mark.join(match[0]) + mark, text))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(entry, change) for key, entry in value.items()}
    if isinstance(value, Sequence):
        return [_mapped(entry, change) for entry in value]
    return value


def spans(rendered: str, pattern: re.Pattern[str], mark: str) -> Iterator[tuple[str, bool]]:
    """Cut `rendered` into (text, whether control tokens in it are control tokens), marks taken out.

    A cut lies only where a control token of the template borders on a stretch with client-written ones, so that all other text
    is tokenised as if it had never been cut.
    """
    edges = [0, *chain.from_iterable(match.span() for match in pattern.finditer(rendered)), len(rendered)]
    begin = 0
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        if mark in rendered[start:end]:
            yield rendered[begin:start], True
            yield rendered[start:end].replace(mark, ""), False
            begin = end
    yield rendered[begin:], True
