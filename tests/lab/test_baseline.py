"""The 5-gram model against the formula written with dictionaries."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from lab.baseline import NGrams


def slow(train: list[int], history: list[int], token: int, vocabulary: int) -> float:
    """P(token | history) for histories up to the given one."""
    chance = 1 / vocabulary
    for length in range(len(history) + 1):
        wanted = tuple(history[len(history) - length :])
        following = Counter(
            train[place + length] for place in range(len(train) - length) if tuple(train[place : place + length]) == wanted
        )
        if following:
            chance = (following[token] + len(following) * chance) / (following.total() + len(following))
    return chance


@pytest.fixture(scope="module")
def train() -> list[int]:
    return np.random.default_rng(3).geometric(0.4, 300).clip(max=7).tolist()


def test_is_the_formula(train: list[int]) -> None:
    held_out = np.random.default_rng(4).geometric(0.4, 60).clip(max=7)
    found = NGrams(np.array(train, np.uint16), 9).log_probabilities(held_out.astype(np.uint16))
    expected = [slow(train, held_out[place - 4 : place].tolist(), int(held_out[place]), 9) for place in range(4, 60)]
    assert np.allclose(found, np.log(expected), rtol=1e-12)


def test_probabilities_of_a_history_add_up_to_one(train: list[int]) -> None:
    ngrams = NGrams(np.array(train, np.uint16), 9)
    history = train[10:14]
    total = sum(np.exp(ngrams.log_probabilities(np.array([*history, token], np.uint16)))[0] for token in range(9))
    assert abs(total - 1) < 1e-12


def test_tokens_never_seen_have_a_chance(train: list[int]) -> None:
    found = NGrams(np.array(train, np.uint16), 5000).log_probabilities(np.full(5, 4999, np.uint16))
    assert np.isfinite(found).all() and found[0] < np.log(1e-5)
