"""A sequence whose tokens are masked, as far as its masks have followed it. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.errors import RequestError
from headrace.runner.sequence_masks import SequenceMasks, Words
from headrace.types import Request

Failure = tuple[int, str]
"""If a row yields more tokens than these, those behind them are what nobody allowed, and its request fails, for a reason."""


@dataclass(slots=True, eq=False)
class Followed:
    """A sequence with masks, of which so many tokens are generated. over: nothing more is asked of it. failure: of its
    newest row.
    """

    request: Request
    masks: SequenceMasks
    vocab_size: int
    generated: int = 0
    over: bool = False
    failure: Failure | None = None

    def advance(self, tokens: Sequence[int]) -> None:
        """As far as the message goes, as `scheduler.commit` has it."""
        if self.over or self._failed(len(tokens)):
            return
        end = self._until_end(tokens)
        tokens = tokens[: min(1 + end, self.request.max_tokens - self.generated)]
        self.generated += len(tokens)
        self.over = self.generated >= self.request.max_tokens or end < len(tokens)
        try:
            self.masks.advance(tokens)
        except RequestError as error:
            self.over, self.failure = True, (0, str(error))

    def fill(self, drafts: Sequence[int], words: Words) -> int:
        """See `SequenceMasks.fill`. From a mask on that allows nothing there is none."""
        if self.over:
            return 0
        drafts, place = drafts[: self._until_end(drafts)], 0
        try:
            count = self.masks.fill(drafts, words[: 1 + len(drafts)])
            for place, mask in enumerate(words[:count]):
                self._check(mask, self.generated + place)
        except RequestError as error:
            self.failure = place, str(error)
            return place
        return count

    def _failed(self, tokens: int) -> bool:
        """Whether the newest row, which yielded so many, came as far as its failure."""
        self.over = self.failure is not None and tokens > self.failure[0]
        self.failure = self.failure if self.over else None
        return self.over

    def _until_end(self, tokens: Sequence[int]) -> int:
        """How many tokens come before the first that ends the message."""
        ends = self.request.end_ids
        return next((n for n, token in enumerate(tokens) if token in ends), len(tokens))

    def _check(self, mask: Words, generated: int) -> None:
        held_open = generated < self.request.params.min_tokens
        if not _allows(mask, self.vocab_size, self.request.end_ids if held_open else ()):
            but = f" but what ends the message, before min_tokens {self.request.params.min_tokens}" if held_open else ""
            raise RequestError(f"the mask behind {generated} generated tokens allows no token{but}")


def _allows(mask: Words, vocab_size: int, without: Iterable[int]) -> bool:
    """Whether a mask [W] allows a token but these."""
    words = mask.view(np.uint32).copy()
    if rest := vocab_size % 32:
        words[-1] &= np.uint32((1 << rest) - 1)
    for token in without:
        if token < vocab_size:
            words[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFF_FFFF)
    return bool(words.any())
