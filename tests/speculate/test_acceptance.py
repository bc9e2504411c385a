"""Estimates of acceptance: what a row tells, what stands behind what was not seen, how fast it is forgotten."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.speculate.acceptance import Acceptance

POSITIONS = 5


def see(estimates: Acceptance, slot: int, drafted: int, accepted: int, times: int = 1) -> None:
    for _ in range(times):
        estimates.observe(np.array([slot]), np.array([drafted]), np.array([accepted]))


def survival(estimates: Acceptance, slot: int) -> list[float]:
    found: list[float] = estimates.survival(np.array([slot]))[0].tolist()
    return found


ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, POSITIONS), st.integers(0, POSITIONS)), max_size=60)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(ROWS)
def test_estimates_are_chances_and_never_rise_with_the_position(rows: list[tuple[int, int, int]]) -> None:
    estimates = Acceptance(4, POSITIONS)
    for slot, drafted, accepted in rows:
        see(estimates, slot, drafted, min(drafted, accepted))
    found = estimates.survival(np.arange(4))
    assert np.isfinite(found).all() and (found > 0).all() and (found < 1).all()
    assert (np.diff(found, axis=1) <= 0).all()


def test_nothing_seen_is_the_first_guess() -> None:
    assert survival(Acceptance(1, 3, first_guess=0.5, hope=0), 0) == pytest.approx([0.5, 0.25, 0.125])


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
def test_they_become_what_is_true(chance: float) -> None:
    rng, estimates = np.random.default_rng(0), Acceptance(8, POSITIONS, memory=2000, hope=0)
    slots = np.arange(8)
    for _ in range(2000):
        accepted = np.cumprod(rng.random((8, POSITIONS)) < chance, axis=1).sum(1)
        estimates.observe(slots, np.full(8, POSITIONS), accepted)
    truth = chance ** np.arange(1, POSITIONS + 1)
    assert estimates.survival(slots) == pytest.approx(np.broadcast_to(truth, (8, POSITIONS)), abs=0.06)


def test_each_position_has_its_own() -> None:
    estimates = Acceptance(1, 3)
    see(estimates, 0, 3, 2, times=2000)  # the third is never accepted
    first, second, third = survival(estimates, 0)
    assert first > 0.95 and second > 0.9 and third < 0.05


def test_drafts_behind_a_rejected_one_tell_nothing() -> None:
    one, five = Acceptance(1, POSITIONS), Acceptance(1, POSITIONS)
    see(one, 0, 1, 0, times=20)
    see(five, 0, 5, 0, times=20)
    assert survival(one, 0) == survival(five, 0)


def test_deep_drafts_are_guessed_from_the_sequences_own_shallow_ones() -> None:
    estimates = Acceptance(2, POSITIONS)
    for _ in range(300):
        estimates.observe(np.array([0, 1]), np.array([1, 1]), np.array([1, 0]))
    assert survival(estimates, 0)[-1] > 0.8 and survival(estimates, 1)[-1] < 0.01


def test_a_new_sequence_is_guessed_to_be_like_the_others() -> None:
    estimates = Acceptance(3, POSITIONS, hope=0)
    for _ in range(300):
        estimates.observe(np.array([0, 1, 2]), np.array([5, 5, 5]), np.array([0, 0, 5]))
    estimates.begin(2)
    assert survival(estimates, 2)[0] == pytest.approx(1 / 3, abs=0.02)
    assert estimates.seen(np.arange(3)).tolist() == pytest.approx([estimates.seen(np.array([0]))[0]] * 2 + [0.0])


def test_where_sequences_differ_little_is_needed_to_judge_one() -> None:
    """Four accepted drafts of a new sequence say more where others are all good or all bad than where they are alike."""
    differ, alike = Acceptance(5, 1, hope=0), Acceptance(5, 1, hope=0)
    for step in range(400):
        slots, one = np.arange(4), np.ones(4, dtype=np.int64)
        differ.observe(slots, one, np.array([1, 1, 0, 0]))
        alike.observe(slots, one, np.full(4, step % 2))
    for estimates in (differ, alike):
        see(estimates, 4, 1, 1, times=4)
    assert survival(differ, 4)[0] > 0.85 > 0.65 > survival(alike, 4)[0]


def test_what_is_not_tried_is_forgotten() -> None:
    estimates = Acceptance(2, 2, memory=50)
    see(estimates, 0, 1, 0, times=100)
    before = estimates.seen(np.array([0]))[0]
    see(estimates, 0, 0, 0, times=50)
    assert estimates.seen(np.array([0]))[0] == pytest.approx(before * 0.98**50)


def test_an_average_of_nothing_goes_on_saying_so() -> None:
    """What one sequence never accepted is not hoped for long after, nor of another; what it accepted now and then is."""
    never, sometimes = Acceptance(2, 1), Acceptance(2, 1)
    for step in range(200):
        see(never, 0, 1, 0)
        see(sometimes, 0, 1, step % 2)
    for estimates in (never, sometimes):
        see(estimates, 0, 0, 0, times=300)
    assert survival(never, 0)[0] < 0.02 and survival(never, 1)[0] < 0.08
    plain = Acceptance(2, 1, hope=0)
    for step in range(200):
        see(plain, 0, 1, step % 2)
    see(plain, 0, 0, 0, times=300)
    assert 0.01 < survival(sometimes, 1)[0] - survival(plain, 1)[0] < 0.3


def test_a_change_is_noticed_within_a_dozen_drafts() -> None:
    """A sequence that accepted all for long and now accepts none, and the other way round; deep drafts keep their own rates."""
    for before, after in ((3, 0), (0, 3)):
        estimates = Acceptance(1, 3, hope=0)
        see(estimates, 0, 3, before, times=500)
        known = survival(estimates, 0)[0]
        see(estimates, 0, 3, after, times=12)
        assert abs(survival(estimates, 0)[0] - known) > 0.5
        assert estimates.seen(np.array([0]))[0] < 25


def test_of_what_was_before_a_change_little_is_left() -> None:
    """Drafts that cost next to nothing pay down to a tenth of them accepted."""
    estimates = Acceptance(1, 3, hope=0)
    see(estimates, 0, 3, 3, times=500)
    see(estimates, 0, 3, 0, times=40)
    assert survival(estimates, 0)[0] < 0.1


def test_chance_alone_is_no_change() -> None:
    """2,000 drafts at each of many rates: what was seen keeps its weight."""
    rng, chances, slots = np.random.default_rng(0), np.linspace(0, 1, 50), np.arange(50)
    estimates = Acceptance(50, 1)
    for step in range(2000):
        estimates.observe(slots, np.ones(50, dtype=np.int64), (rng.random(50) < chances).astype(np.int64))
        if step > 1000:
            assert (estimates.seen(slots) > 100).mean() > 0.9


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 2**31), st.integers(1, 12))
def test_several_steps_at_once_are_one_behind_the_other(seed: int, count: int) -> None:
    rng, at_once, in_turn = np.random.default_rng(seed), Acceptance(6, POSITIONS), Acceptance(6, POSITIONS)
    slots, drafted, accepted = [], [], []
    for _ in range(count):
        slots.append(rng.permutation(6)[: rng.integers(1, 7)])
        drafted.append(rng.integers(0, POSITIONS + 1, len(slots[-1])))
        accepted.append(rng.integers(0, drafted[-1] + 1))
        in_turn.observe(slots[-1], drafted[-1], accepted[-1])
    at_once.observe(*(np.concatenate(part) for part in (slots, drafted, accepted)), [len(step) for step in slots])
    assert at_once.survival(np.arange(6)) == pytest.approx(in_turn.survival(np.arange(6)), rel=1e-9)
    assert at_once.seen(np.arange(6)) == pytest.approx(in_turn.seen(np.arange(6)), rel=1e-9)
