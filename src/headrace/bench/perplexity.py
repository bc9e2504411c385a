"""What texts that were followed lose, beside those that were followed with other types or another way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from headrace.bench.teacher import Followed
from headrace.bench.whole_table import whole_table

Types = tuple[str, str]
"""Of KV and of states."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Texts of so many tokens, followed by a way. loss: nats a token. over_reference: of the perplexity over that of the first
    types the same way, less one, and error, its standard error by the tokens' differences; over_steps: the same of the mean
    log-probability, over that of the same types through steps. accepted: drafts of a row, in the mean.
    """

    kv: str
    state: str
    way: str
    tokens: int
    loss: float
    perplexity: float
    over_reference: float
    error: float
    over_steps: float | None
    accepted: float | None


class Losses:
    """Of the same texts by every way, of the reference types first, and through steps before drafts."""

    def __init__(self, reference: Types) -> None:
        self._reference = reference
        self._logprobs: dict[tuple[Types, str], np.ndarray] = {}

    def add(self, types: Types, way: str, followed: Followed) -> Measured:
        own = self._logprobs[types, way] = np.concatenate(followed.logprobs)
        worse = self._logprobs[self._reference, way] - own
        steps = self._logprobs.get((types, "steps")) if way != "steps" else None
        rows = followed.pairs.total()
        return Measured(
            *types, way, len(own), -float(own.mean()), float(np.exp(-own.mean())), float(np.expm1(worse.mean())),
            float(worse.std() / len(own) ** 0.5), None if steps is None else float(own.mean() / steps.mean()) - 1,
            sum(right * count for (_, right), count in followed.pairs.items()) / rows if rows else None,
        )


def losses_table(found: Sequence[Measured]) -> Table:
    table = whole_table(
        "KV", "states", "way", "loss", "perplexity", "over first", "±", "over steps", "accepted",
        caption=f"{found[0].tokens} tokens. Loss: nats a token. Over first: the perplexity, over the first types' by the same "
        "way, ± the standard error of the tokens' differences. Over steps: the loss, over the same types' through steps. "
        "Accepted: drafts of a row.",
    )
    for each in found:
        table.add_row(
            each.kv, each.state, each.way, f"{each.loss:.5f}", f"{each.perplexity:.6g}", f"{each.over_reference:+.4%}",
            f"{each.error:.4%}", "" if each.over_steps is None else f"{each.over_steps:+.4%}",
            "" if each.accepted is None else f"{each.accepted:.2f}",
        )
    return table
