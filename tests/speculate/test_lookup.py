"""Drafts by lookup against a search written as its definition, and in an engine's scheduler."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.scheduler.drafter import Drafter
from headrace.speculate.lookup import LookupDrafter, continuation, latest_match
from headrace.types import Request, SamplingParams

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=60)


def request(prompt: list[int], name: str = "r") -> Request:
    return Request(name, tuple(prompt), SamplingParams(), seed=0, max_tokens=1000)


def naive_match(tokens: list[int], shortest: int, longest: int) -> int | None:
    for length in range(longest, shortest - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[len(tokens) - length :]:
                return end
    return None


def naive_continuation(tokens: list[int], match: int, count: int) -> list[int]:
    text = list(tokens)
    for at in range(match, match + count):
        text.append(text[at])
    return text[len(tokens) :]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(TEXTS, st.integers(1, 6), st.integers(0, 6))
def test_the_match_is_the_naive_one(tokens: list[int], shortest: int, more: int) -> None:
    longest = shortest + more
    assert latest_match(np.array(tokens, dtype=np.int32), shortest, longest) == naive_match(tokens, shortest, longest)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(TEXTS, st.integers(0, 20), st.integers(0, 15), st.data())
def test_what_follows_is_the_naive_one(tokens: list[int], skipped: int, count: int, data: st.DataObject) -> None:
    match = data.draw(st.integers(0, len(tokens) - 1))
    expected = naive_continuation(tokens, match, skipped + count)[skipped:]
    assert list(continuation(np.array(tokens, dtype=np.int32), match, skipped, count)) == expected


@settings(max_examples=100, deadline=None, derandomize=True)
@given(TEXTS, st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=30), st.integers(1, 15))
def test_a_growing_sequence_is_as_one_read_at_once(prompt: list[int], grows: list[list[int]], most: int) -> None:
    drafter, sequence, output = LookupDrafter(shortest=3), request(prompt), list[int]()
    for more in grows:
        output += more
        fresh = LookupDrafter(shortest=3).propose(request(prompt + output), [], 0, most)
        assert drafter.propose(sequence, output, 0, most) == fresh
        tokens = prompt + output
        match = naive_match(tokens, 3, 12)
        assert fresh == (() if match is None else tuple(naive_continuation(tokens, match, most)))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(1000, 4000))
def test_the_match_is_the_naive_one_in_long_texts(seed: int, vocab: int, length: int) -> None:
    """Places in every piece that is looked through; random texts of few tokens have suffixes of all lengths."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 1 + vocab, length, dtype=np.int32)
    at, copied = int(rng.integers(0, length - 20)), int(rng.integers(1, 16))
    tokens[length - copied :] = tokens[at : at + copied]
    assert latest_match(tokens) == naive_match(tokens.tolist(), 6, 12)


def test_the_longest_suffix_wins_over_a_later_shorter_one() -> None:
    long, short = [9, 1, 2, 3, 4, 5, 6], [8, 1, 2, 3, 4, 5, 6]
    tokens = [*long, 70, *short, 80, *long]
    assert LookupDrafter(most=1).propose(request(tokens), [], 0, 1) == (70,)
    assert LookupDrafter(most=1, longest=6).propose(request(tokens), [], 0, 1) == (80,)


def test_too_little_in_common_is_no_match() -> None:
    assert LookupDrafter().propose(request([1, 2, 3, 4, 5, 70, 1, 2, 3, 4, 5]), [], 0, 15) == ()
    assert LookupDrafter().propose(request([1]), [], 0, 15) == ()


def test_rows_in_flight_are_taken_to_be_accepted() -> None:
    text = list(range(40))
    drafter, sequence = LookupDrafter(most=4), request([*text, *text[:8]])
    assert drafter.propose(sequence, [], 0, 4) == (8, 9, 10, 11)
    assert drafter.propose(sequence, [], 1, 3) == (13, 14, 15)  # 12 is what the target adds
    assert drafter.propose(sequence, [], 2, 2) == (17, 18)
    assert drafter.propose(sequence, [8, 9, 10, 11, 12], 2, 2) == (20, 21)  # the last two rows: 13 to 16, 17 to 19


def test_a_rejection_is_followed_from_the_tokens_that_came() -> None:
    text = list(range(40))
    drafter, sequence = LookupDrafter(most=4), request([*text, *text[:8]])
    drafter.propose(sequence, [], 0, 4)
    assert drafter.propose(sequence, [8, 99], 0, 4) == ()
    assert drafter.propose(sequence, [8, 99, *text[20:26]], 0, 2) == (26, 27)


def test_an_id_that_is_used_again_is_another_sequence() -> None:
    drafter, text = LookupDrafter(most=2), list(range(20))
    assert drafter.propose(request([*text, *text[:8]]), [], 0, 2) == (8, 9)
    assert drafter.propose(request([*text, *text[3:9]]), [], 0, 2) == (9, 10)


def test_forgotten_sequences_are_read_again() -> None:
    drafter, text = LookupDrafter(most=2), list(range(20))
    first = request([*text, *text[:8]])
    drafter.propose(first, [], 0, 2)
    for n in range(300):
        drafter.propose(request([1, 2], f"other {n}"), [], 0, 2)
    assert drafter.propose(first, [8, 9], 0, 2) == (10, 11)


def test_it_is_the_schedulers_drafter() -> None:
    drafter: Drafter = LookupDrafter()
    assert drafter.most == 15


@pytest.mark.parametrize(("most", "shortest", "longest"), [(0, 6, 12), (15, 0, 12), (15, 6, 5)])
def test_settings_that_cannot_work_are_refused(most: int, shortest: int, longest: int) -> None:
    with pytest.raises(ValueError, match=f"{most} drafts by suffixes of {shortest} to {longest}"):
        LookupDrafter(most, shortest, longest)
