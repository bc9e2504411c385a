"""Texts that a model wrote: their score, and its error."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from headrace.bench.teacher import Teacher
from headrace.bench.written import PROMPT_TOKENS, Writing, Written, score


def scored(plain: Sequence[float], drafted: Sequence[float]) -> tuple[Written, Written]:
    """Of texts of 300 tokens, whose losses these are."""
    told = iter([[np.r_[np.full(PROMPT_TOKENS - 1, -9.0), np.full(300, -loss)] for loss in of] for of in (plain, drafted)])
    scorer = cast(Teacher, SimpleNamespace(through_prompts=lambda texts: SimpleNamespace(logprobs=next(told))))
    texts: list[Any] = [(0,) * (PROMPT_TOKENS + 300)] * len(plain)
    return score(scorer, Writing(("bf16", "fp16"), False, texts, 1.0), Writing(("bf16", "fp16"), True, texts, 2.5))


def test_the_error_is_that_of_the_texts() -> None:
    """Tokens of a text are about one thing: four texts of 300 alike tokens tell no more than four numbers do."""
    plain, drafted = scored((1.0, 2.0, 3.0, 4.0), (2.0, 2.0, 3.0, 4.0))
    assert (plain.tokens, plain.tokens_a_row, plain.over_plain) == (1200, 1.0, None)
    assert plain.loss == pytest.approx(2.5)
    assert plain.error == pytest.approx(np.std([1, 2, 3, 4], ddof=1) / 2)
    assert drafted.loss == pytest.approx(2.75)
    assert drafted.tokens_a_row == 2.5


def test_drafts_are_compared_prompt_by_prompt() -> None:
    """What is the same for both says nothing: only the first prompt's texts differ."""
    _, drafted = scored((1.0, 2.0, 3.0, 4.0), (2.0, 2.0, 3.0, 4.0))
    assert drafted.over_plain == pytest.approx(0.25 / 2.5)
    assert drafted.over_error == pytest.approx(np.std([1, 0, 0, 0], ddof=1) / 2 / 2.5)
