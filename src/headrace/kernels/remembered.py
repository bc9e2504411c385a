"""Choices of form, made once for each shape: a step asks for the same ones in every layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

_MOST = 16_384
"""Answers that are kept; then all are given up."""

Given = ParamSpec("Given")
Chosen = TypeVar("Chosen")


def remembered(choose: Callable[Given, Chosen]) -> Callable[Given, Chosen]:
    """The same function of numbers, frozen objects and mappings of such, which remembers what it said."""
    answers: dict[object, Any] = {}

    @wraps(choose)
    def asked(*args: Given.args, **kwargs: Given.kwargs) -> Chosen:
        key = (*[tuple(x.items()) if isinstance(x, Mapping) else x for x in args], *kwargs.items())
        found: Chosen | None = answers.get(key)
        if found is None:
            if len(answers) >= _MOST:
                answers.clear()
            found = answers[key] = choose(*args, **kwargs)
        return found

    return asked
