"""What a model writes itself without drafts and with them, scored by the same model in float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.bench.perplexity import Types
from headrace.bench.teacher import Teacher

PROMPT_TOKENS = 64
"""Of a text that the model goes on with."""
Text = Sequence[int]


@dataclass(frozen=True, slots=True)
class Written:
    """What the model wrote itself: tokens, scored in nats a token by float32, with the texts' standard error, and tokens that
    a row yielded.
    """

    kv: str
    state: str
    drafts: bool
    tokens: int
    loss: float
    error: float
    tokens_a_row: float


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


def score(scorer: Teacher, writing: Writing) -> Written:
    """By the log-probabilities behind the prompts. Texts of one length scatter by more than their tokens tell: one is about one
    thing. So the error is that of the texts.
    """
    scored = np.stack([logprobs[PROMPT_TOKENS - 1 :] for logprobs in scorer.through_prompts(writing.texts).logprobs])  # [N, T]
    losses = -scored.mean(1)
    error = float(losses.std(ddof=1) / len(losses) ** 0.5)
    return Written(*writing.types, writing.drafts, scored.size, float(losses.mean()), error, writing.tokens_a_row)
