"""Texts that a model wrote: their score, and its error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from headrace.bench.teacher import Teacher
from headrace.bench.written import PROMPT_TOKENS, Writing, score


def test_the_error_is_that_of_the_texts() -> None:
    """Tokens of a text are about one thing: four texts of 300 alike tokens tell no more than four numbers do."""
    told = [np.r_[np.full(PROMPT_TOKENS - 1, -9.0), np.full(300, -loss)] for loss in (1.0, 2.0, 3.0, 4.0)]
    scorer = cast(Teacher, SimpleNamespace(through_prompts=lambda texts: SimpleNamespace(logprobs=told)))
    texts: list[Any] = [(0,) * (PROMPT_TOKENS + 300)] * 4
    found = score(scorer, Writing(("bf16", "fp16"), True, texts, 2.5))
    assert (found.tokens, found.loss, found.tokens_a_row) == (1200, pytest.approx(2.5), 2.5)
    assert found.error == pytest.approx(np.std([1, 2, 3, 4], ddof=1) / 2)
