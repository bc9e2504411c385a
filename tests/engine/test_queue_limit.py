"""Admission: how many, and when to come back."""

from __future__ import annotations

import pytest

from headrace.engine.queue_limit import LONGEST_RETRY_S, UNKNOWN_RETRY_S, QueueLimit
from headrace.errors import QueueFullError


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def full(capacity: int, clock: Clock) -> QueueLimit:
    limit = QueueLimit(capacity, clock)
    for _ in range(capacity):
        limit.enter()
    return limit


def turn_away(limit: QueueLimit) -> int:
    with pytest.raises(QueueFullError) as refusal:
        limit.enter()
    return refusal.value.retry_after_s


def test_room_comes_back_when_one_leaves():
    limit = full(3, Clock())
    turn_away(limit)
    limit.leave()
    limit.enter()
    turn_away(limit)
    assert limit.held == 3


def test_nothing_is_known_before_a_request_has_ended():
    assert turn_away(full(1, Clock())) == UNKNOWN_RETRY_S


@pytest.mark.parametrize("after_s", [5, 40, 400])
def test_those_turned_away_are_spread_over_the_recent_rate(after_s: int):
    clock = Clock()
    limit = full(8, clock)
    for _ in range(2 * after_s):  # two end each second
        clock.now_s += 0.5
        limit.leave()
        limit.enter()
    assert [turn_away(limit) for _ in range(8)] == pytest.approx([1, 1, 2, 2, 3, 3, 4, 4], abs=1)
    for _ in range(1000):
        longest = turn_away(limit)
    assert longest == LONGEST_RETRY_S


def test_a_rate_of_long_ago_fades():
    clock = Clock()
    limit = full(8, clock)
    for _ in range(100):
        clock.now_s += 0.1
        limit.leave()
        limit.enter()
    assert turn_away(limit) == 1
    clock.now_s += 120
    assert turn_away(limit) > 5
