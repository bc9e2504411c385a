"""Where checkpoints of a prompt go, and where its chunks end for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cache.checkpoint_places import CheckpointPlaces, clip

PLACES = CheckpointPlaces(checkpoint_tokens=1152, split_tokens=64)


def test_a_cold_prompt_keeps_its_first_last_and_distant_message_ends() -> None:
    ends = [100, 300, 600, 1400, 1500, 2700, 2800, 2900, 3000]
    assert PLACES.of_prompt(3050, message_ends=ends) == (100, 1400, 2700, 2800, 2900, 3000, 3049)
    assert PLACES.of_prompt(3010, message_ends=[100, 200, 300, 3000]) == (100, 200, 300, 3000), "ten tokens more"


def test_a_resumed_prompt_keeps_its_new_message_ends_like_a_cold_one() -> None:
    """A turn of a conversation has one or two; a long conversation may begin with a cached first message."""
    ends = [100, 1000, 1010, 1020, 1030, 1040, 1050]
    assert PLACES.of_prompt(1055, resumed=1025, message_ends=ends) == (1030, 1040, 1050)
    assert PLACES.of_prompt(1055, resumed=500, message_ends=ends) == (1000, 1030, 1040, 1050)
    assert PLACES.of_prompt(1055, resumed=1055, message_ends=ends) == ()


def test_a_long_document_has_geometric_points() -> None:
    assert PLACES.of_prompt(24_000) == (1152, 2304, 4608, 9216, 18432, 23_999)
    assert PLACES.of_prompt(24_000, message_ends=[2000, 23_990]) == (2000, 4608, 9216, 18432, 23_990)
    assert PLACES.of_prompt(19_000, resumed=4000) == (9216, 18_999), "4608 is near the start, 18432 near the end"


def test_geometric_points_lie_where_chunks_end() -> None:
    places = CheckpointPlaces(1152, 64, chunk_tokens=2048)
    assert places.of_prompt(8192) == (2048, 4096, 8191), "four chunks"
    assert places.of_prompt(24_000, message_ends=[2000, 23_990]) == (2000, 4096, 8192, 16_384, 23_990)
    assert CheckpointPlaces(2304, 64, chunk_tokens=1024).of_prompt(8192) == (3072, 8191), "6144 is near the end"


def test_split_points_are_worth_some_tokens() -> None:
    assert PLACES.of_prompt(900, resumed=100, splits=[120, 163, 164, 500]) == (164, 500, 899)


@pytest.mark.parametrize(("ends", "splits", "word"), [([5, 11], [], "message end"), ([], [-1], "split point")])
def test_places_outside_the_prompt_are_an_error(ends: list[int], splits: list[int], word: str) -> None:
    with pytest.raises(ValueError, match=f"{word} .*10 tokens"):
        PLACES.of_prompt(10, message_ends=ends, splits=splits)
    with pytest.raises(ValueError, match="1 or more"):
        CheckpointPlaces(0, 1)
    with pytest.raises(ValueError, match="1 or more"):
        CheckpointPlaces(1, 1, 0)


@given(prompt=st.integers(1, 5000), resumed=st.integers(0, 5000), data=st.data())
def test_places_rise_within_what_is_computed(prompt: int, resumed: int, data: st.DataObject) -> None:
    within = st.lists(st.integers(0, prompt), max_size=30)
    ends, splits = data.draw(within), data.draw(within)
    places = CheckpointPlaces(50, 8).of_prompt(prompt, resumed, ends, splits)
    assert list(places) == sorted(set(places))
    assert all(resumed < place <= prompt for place in places)
    assert max(resumed, *places, 0) >= prompt - 16, "asked again, it is cached but for a few tokens"
    assert resumed or prompt == 1 or places, "the shortest ones too"
    if not ends and not splits and 0 < resumed < prompt:
        again = CheckpointPlaces(50, 8).of_prompt(prompt, 0, [resumed])
        assert [place for place in again if place > resumed][-1:] == list(places[-1:]), "a cold one is cut as it is"
    late = sorted({end for end in ends if end > resumed})
    assert set(late[-3:]) | set(late[:1]) <= set(places)


@given(places=st.lists(st.integers(1, 100), unique=True), chunk=st.integers(1, 30))
def test_chunks_end_at_every_place(places: list[int], chunk: int) -> None:
    places.sort()
    ends, at = [], 0
    while at < 100:
        at = clip(at, min(100, at + chunk), places)
        ends.append(at)
    assert set(places) <= set(ends) and ends[-1] == 100
    assert all(0 < b - a <= chunk for a, b in zip([0, *ends], ends, strict=False))
