"""What a model writes itself without drafts and with them, scored by the same model in float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headrace.bench.perplexity import Types
from headrace.bench.teacher import Teacher

PROMPT_TOKENS = 64
"""Of a text that the model goes on with."""
Text = Sequence[int]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Written:
    """What the model wrote itself: tokens, scored in nats a token by float32, with the texts' standard error, and tokens that
    a row yielded. With drafts, over_plain: the score over that of what it wrote behind the same prompts without, less one, and
    over_error: its standard error.
    """

    kv: str
    state: str
    drafts: bool
    tokens: int
    loss: float
    error: float
    tokens_a_row: float
    over_plain: float | None = None
    over_error: float | None = None


@dataclass(frozen=True, slots=True)
class Writing:
    """texts of one length; tokens_a_row: what a row of the engine yielded."""

    types: Types
    drafts: bool
    texts: list[tuple[int, ...]]
    tokens_a_row: float


def write(teacher: Teacher, types: Types, texts: Sequence[Text], tokens: int, length: int) -> Iterator[Writing]:
    """`tokens` tokens or more behind the beginnings of texts, in two sequences or more of `length`: without drafts, then with
    as many as a row may have.
    """
    count = max(2, -(-tokens // (length - PROMPT_TOKENS)))
    prompts = [texts[number % len(texts)][:PROMPT_TOKENS] for number in range(count)]
    for drafts in (0, teacher.most):
        yield Writing(types, drafts > 0, *teacher.go_on(prompts, length, drafts))


def score(scorer: Teacher, plain: Writing, drafted: Writing) -> tuple[Written, Written]:
    """Both, by the log-probabilities behind the prompts. Tokens of a text are about one thing, and tell less than as many alone
    would: errors are those of the texts. Most of what texts differ by lies in their prompts, so the two are compared prompt by
    prompt.
    """
    losses, over = _losses(scorer, plain), _losses(scorer, drafted)
    mean = float(losses.mean())
    more, error = float((over - losses).mean()) / mean, _error(over - losses) / mean
    return _written(plain, losses), replace(_written(drafted, over), over_plain=more, over_error=error)


def _losses(scorer: Teacher, writing: Writing) -> Floats:
    """[N] of each text: nats a token."""
    logprobs = np.stack(scorer.through_prompts(writing.texts).logprobs)[:, PROMPT_TOKENS - 1 :]
    found: Floats = -logprobs.mean(1)
    return found


def _written(writing: Writing, losses: Floats) -> Written:
    tokens = sum(len(text) - PROMPT_TOKENS for text in writing.texts)
    return Written(*writing.types, writing.drafts, tokens, float(losses.mean()), _error(losses), writing.tokens_a_row)


def _error(numbers: Floats) -> float:
    """The standard error of their mean."""
    return float(numbers.std(ddof=1) / len(numbers) ** 0.5)
