"""Masks of tests: which token may follow which, and how long a message is."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from headrace.errors import RequestError
from headrace.runner.followed import Words
from headrace.runner.sequence_masks import MakeMasks, SequenceMasks
from headrace.types import Request

Allowed = frozenset[int]


def packed(allowed: Sequence[int] | Allowed, vocab_size: int) -> Words:
    """[ceil(V / 32)], with ones behind the vocabulary."""
    bits = np.ones(-(-vocab_size // 32) * 32, dtype=np.uint8)
    bits[:vocab_size] = 0
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


class Grammar:
    """A sequence that may go on by what `following` says of its tokens so far: the last of its prompt, and what it generated.

    Raises RequestError for a token that is not allowed: so that whoever generates one hears of it.
    """

    def __init__(self, request: Request, following: Callable[[tuple[int, ...]], Allowed], vocab_size: int) -> None:
        self._following, self._vocab_size, self.tokens = following, vocab_size, request.prompt[-1:]

    def advance(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if token not in self._following(self.tokens):
                raise RequestError(f"{token} may not follow {self.tokens}")
            self.tokens = (*self.tokens, token)

    def fill(self, drafts: Sequence[int], words: Words) -> int:
        assert words.shape == (1 + len(drafts), -(-self._vocab_size // 32)) and words.dtype == np.int32
        tokens = self.tokens
        for place in range(1 + len(drafts)):
            allowed = self._following(tokens)
            words[place] = packed(allowed, self._vocab_size)
            if place == len(drafts) or drafts[place] not in allowed:
                return 1 + place
            tokens = (*tokens, drafts[place])
        raise AssertionError


def by_last(vocab_size: int, share: float, seed: int = 0) -> Callable[[tuple[int, ...]], Allowed]:
    """On each token half of a share of the vocabulary may follow, or half as much again, and two tokens at least."""
    rng = random.Random(seed)
    counts = [round(share * vocab_size * (0.5 + rng.random())) for _ in range(vocab_size)]
    table = [frozenset(rng.sample(range(vocab_size), min(vocab_size, max(2, count)))) for count in counts]
    return lambda tokens: table[tokens[-1]]


def at_most(length: int, allowed: Allowed, end: int) -> Callable[[tuple[int, ...]], Allowed]:
    """So many of some tokens, then the end and nothing else."""
    return lambda tokens: allowed if len(tokens) <= length else frozenset((end,))


def masks_of(grammars: dict[str, Callable[[tuple[int, ...]], Allowed]], vocab_size: int) -> MakeMasks:
    """By request id; others may draw everything."""

    def make(request: Request) -> SequenceMasks | None:
        following = grammars.get(request.id)
        return None if following is None else Grammar(request, following, vocab_size)

    return make
