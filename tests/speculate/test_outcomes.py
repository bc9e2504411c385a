"""Outcomes of steps are taken as they were added, once."""

from __future__ import annotations

from headrace.speculate.outcomes import Outcomes


def test_they_are_taken_as_they_were_added_and_once() -> None:
    outcomes = Outcomes()
    for step in (((3, 300), (15, 0), (2, 0)), ((300,), (1,), (1,)), ((3, 300), (4, 4), (0, 4))):
        outcomes.add(*step)
    assert len(outcomes) == 3
    slots, drafted, accepted, sizes = outcomes.take()
    assert slots.tolist() == [3, 300, 300, 3, 300] and sizes == [2, 1, 2]
    assert drafted.tolist() == [15, 0, 1, 4, 4] and accepted.tolist() == [2, 0, 1, 0, 4]
    assert len(outcomes) == 0
    outcomes.add([7], [2], [1])
    assert [part.tolist() for part in outcomes.take()[:3]] == [[7], [2], [1]]
