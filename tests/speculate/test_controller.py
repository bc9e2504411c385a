"""The controller against every possible choice, and what its tries may cost."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.speculate.controller import LEAST_GAIN, TRIED_SHARE, Choice, choose
from headrace.speculate.costs import StepCosts

Floats = NDArray[np.float64]
FLAT = StepCosts({1: {1: 1.0, 2: 1.1, 4: 1.3, 8: 2.0}, 4: {4: 1.0, 8: 1.5, 16: 2.0, 32: 4.0}})


def decide(
    survival: list[list[float]], costs: StepCosts = FLAT, *, limits: list[int] | None = None,
    contexts: list[int] | None = None, seen: list[float] | None = None, credit_s: float = 0.0, least_s: float = 0.0,
) -> Choice:
    rows, most = len(survival), len(survival[0])
    return choose(
        np.array(survival), np.array(limits or [most] * rows), np.array(contexts or [0] * rows),
        np.array(seen or [0.0] * rows), costs, credit_s, least_s,
    )


def rate(
    survival: list[list[float]], drafts: tuple[int, ...], costs: StepCosts, contexts: list[int], least_s: float = 0.0
) -> float:
    """Tokens a second, written down anew."""
    rows = len(survival)
    size = min(size for size in costs.steps if size >= rows)
    seconds = costs.steps[size][size]
    if any(drafts):
        seconds = max(seconds, min(s for tokens, s in costs.steps[size].items() if tokens >= size + sum(drafts)))
    deepest = max(drafts)
    if deepest and costs.drafter:
        seconds += costs.drafter[size][deepest - 1]
    for context, count in zip(contexts, drafts, strict=True):
        seconds += max(0, context - costs.context) * (costs.context_s + costs.draft_context_s * count)
    tokens = rows + sum(sum(chances[:count]) for chances, count in zip(survival, drafts, strict=True))
    return tokens / max(seconds, least_s)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[list[float]], StepCosts, list[int], list[int]]:
    rows, most = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    chance = st.floats(0.01, 0.99)
    survival = [np.cumprod(draw(st.lists(chance, min_size=most, max_size=most))).tolist() for _ in range(rows)]
    steps = {}
    for size in (2, 3):
        counts = sorted(draw(st.sets(st.integers(size + 1, size * 4), max_size=4)))
        stairs = [1.0, *draw(st.lists(st.floats(0.8, 2.5), min_size=len(counts), max_size=len(counts)))]
        steps[size] = dict(zip([size, *counts], stairs, strict=True))
    drafter = {size: tuple(itertools.accumulate([draw(st.floats(0.0, 0.3))] * most)) for size in steps}
    own_s = draw(st.sampled_from((0.0, 1e-3)))
    costs = StepCosts(steps, drafter if draw(st.booleans()) else {}, 10, own_s / 10, own_s)
    numbers = st.lists(st.integers(0, 300), min_size=rows, max_size=rows)
    limits = draw(st.lists(st.integers(0, most), min_size=rows, max_size=rows))
    return survival, costs, limits, draw(numbers)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(cases(), st.floats(0.5, 3.0))
def test_no_choice_is_better(case: tuple[list[list[float]], StepCosts, list[int], list[int]], host_s: float) -> None:
    survival, costs, limits, contexts = case
    least_s = 0.0 if costs.draft_context_s else host_s
    choice = decide(survival, costs, limits=limits, contexts=contexts, credit_s=-math.inf, least_s=least_s)
    size = min(size for size in costs.steps if size >= len(survival))
    room = max(costs.steps[size]) - size
    possible = [d for d in itertools.product(*(range(limit + 1) for limit in limits)) if sum(d) <= room]
    assert choice.drafts in possible and choice.tried == 0
    best = max(rate(survival, drafts, costs, contexts, least_s) for drafts in possible)
    plain = rate(survival, (0,) * len(survival), costs, contexts, least_s)
    if best < (1 + LEAST_GAIN) * plain:
        assert not any(choice.drafts)
        best = plain
    assert rate(survival, choice.drafts, costs, contexts, least_s) == pytest.approx(best, rel=1e-9)
    assert choice.tokens / choice.seconds == pytest.approx(best, rel=1e-9)
    assert choice.gain == pytest.approx(best / plain - 1, abs=1e-9) and choice.gain >= -1e-12


@settings(max_examples=100, deadline=None, derandomize=True)
@given(cases(), st.integers(0, 2**31))
def test_tries_stay_within_their_share_of_the_time(
    case: tuple[list[list[float]], StepCosts, list[int], list[int]], seed: int
) -> None:
    survival, costs, limits, contexts = case
    rng, credit_s, extra_s, total_s = np.random.default_rng(seed), 0.0, 0.0, 0.0
    for _ in range(30):
        seen = rng.random(len(survival)).tolist()
        alone = decide(survival, costs, limits=limits, contexts=contexts, seen=seen, credit_s=-math.inf)
        choice = decide(survival, costs, limits=limits, contexts=contexts, seen=seen, credit_s=credit_s)
        assert all(0 <= d <= limit for d, limit in zip(choice.drafts, limits, strict=True))
        assert choice.tried == sum(choice.drafts) - sum(alone.drafts) >= 0
        credit_s, extra_s, total_s = choice.credit_s, extra_s + choice.seconds - alone.seconds, total_s + alone.seconds
    assert credit_s >= 0 and extra_s <= TRIED_SHARE * total_s + 1e-9


def test_a_larger_step_that_is_faster_is_taken() -> None:
    costs = StepCosts({4: {4: 1.0, 8: 2.0, 16: 1.5, 32: 3.0}})
    assert costs.stairs(3).tolist() == [1.0, *[1.5] * 12, *[3.0] * 16]
    assert [costs.count(4, drafts) for drafts in (0, 1, 4, 12, 13)] == [4, 16, 16, 16, 32]


def test_a_stair_is_filled_to_its_edge() -> None:
    assert decide([[0.9, 0.8, 0.7, 0.01, 0.005, 0.004, 0.003]]).drafts == (3,)
    assert decide([[0.01, 0.005]]).drafts == (0,)


def test_drafts_go_to_the_rows_that_accept_them() -> None:
    good, bad = [0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65], [0.01] * 7
    assert decide([good, bad, good, bad]).drafts == (6, 0, 6, 0)


def test_a_drafter_that_costs_more_than_it_gives_is_not_asked() -> None:
    dear = StepCosts({1: {1: 1.0, 8: 1.2}}, {1: (2.0,) * 7})
    choice = decide([[0.9**k for k in range(1, 8)]], dear)
    assert choice.drafts[0] == 7  # a block in one pass: all of it or nothing
    assert decide([[0.5**k for k in range(1, 8)]], dear).drafts == (0,)
    assert decide([[0.5**k for k in range(1, 8)]], dear).seconds == 1.0


def test_drafts_of_a_long_row_are_dearer() -> None:
    costs = StepCosts({2: {2: 1.0, 3: 1.1, 4: 1.2}}, {}, 1000, 0.0, 1e-4)
    assert decide([[0.5], [0.5]], costs, contexts=[1000, 9000]).drafts == (1, 0)
    assert decide([[0.5], [0.5]], costs, contexts=[1000, 1000]).drafts == (1, 1)


def test_the_least_known_rows_are_tried_first() -> None:
    costs = StepCosts({4: {4: 1.0, 6: 1.5, 8: 2.0}})
    choice = decide([[0.01]] * 4, costs, seen=[5.0, 1.0, 7.0, 2.0], credit_s=1.1)
    assert choice.drafts == (0, 1, 0, 1) and choice.tried == 2
    assert choice.credit_s == pytest.approx(1.11 - 2 * 0.5)  # the step behind it, without drafts, takes as long
    assert choice.gain < 0


def test_where_all_rows_draft_deeper_ones_are_tried() -> None:
    costs = StepCosts({2: {2: 1.0, 4: 1.1, 6: 2.0}})
    choice = decide([[0.9, 0.1, 0.05], [0.9, 0.2, 0.15]], costs, credit_s=1.0)
    assert choice.drafts == (1, 3) and choice.tried == 2


def test_a_try_waits_until_it_is_paid_for() -> None:
    costs, credit_s, tried = StepCosts({1: {1: 1.0, 2: 1.055}}), 0.0, []
    for _ in range(60):
        choice = decide([[0.01]], costs, credit_s=credit_s)
        credit_s = choice.credit_s
        tried.append(choice.tried)
    assert sum(tried) == 5 and tried.index(1) == 10  # each costs 0.055 twice, in its own step and in the one behind it


def test_more_rows_than_were_measured_are_refused() -> None:
    with pytest.raises(ValueError, match="5 rows was not measured; the most is 4"):
        decide([[0.5]] * 5)


def test_costs_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="one token a row"):
        StepCosts({2: {4: 1.0}})
    with pytest.raises(ValueError, match=r"\[1\] rows, step costs of \[2\]"):
        StepCosts({2: {2: 1.0}}, {1: (0.1,)})


def test_sixty_four_rows_of_fifteen_drafts_take_under_a_millisecond() -> None:
    widths = (1, 2, 4, 8, 16)
    costs = StepCosts({64: {64 * w: 0.011 + 0.006 * w for w in widths}}, {64: tuple(0.0005 * k for k in range(1, 16))})
    survival = np.cumprod(np.random.default_rng(0).uniform(0.3, 0.99, (64, 15)), axis=1)
    arguments = (survival, np.full(64, 15), np.full(64, 1000), np.zeros(64), costs)
    taken = []
    for _ in range(50):
        began = time.thread_time()
        choose(*arguments)
        taken.append(time.thread_time() - began)
    assert sorted(taken)[len(taken) // 4] < 1e-3


def test_break_even_is_the_least_chance_with_which_any_number_of_drafts_pays() -> None:
    one_by_one = StepCosts({2: {2: 1.0, 4: 1.2, 8: 1.5}}, {2: (0.02, 0.04, 0.06)})
    assert one_by_one.break_even(2) == pytest.approx(0.22)
    block = StepCosts({1: {1: 1.0, 8: 1.0}}, {1: (0.75,) * 7})  # one draft would need 0.75
    least = next(chance for chance in np.arange(0, 1, 1e-4) if (chance ** np.arange(1, 8)).sum() >= 0.75)
    assert block.break_even(1) == pytest.approx(least, abs=1e-4)
    assert StepCosts({1: {1: 1.0, 8: 9.0}}).break_even(1) == 1.0


def test_a_try_fills_what_its_stair_and_the_drafter_give_for_nothing() -> None:
    """Two rows that are not worth drafting for: drafts behind the first ones where those take no more time."""
    survival, limits, contexts = np.full((2, 7), 1e-3), np.array([7, 2]), np.zeros(2, dtype=np.int64)
    stairs = {2: {2: 1.0, 4: 1.3, 8: 1.5, 16: 2.0}}

    def tried(drafter: tuple[float, ...], steps: dict[int, dict[int, float]] = stairs, known: float = 0.0) -> tuple[int, ...]:
        found = choose(survival, limits, contexts, np.array([known, 1.0]), StepCosts(steps, {2: drafter}), 9.0)
        assert found.tried == sum(found.drafts)
        return found.drafts

    assert tried((0.1,) * 7) == (1, 1)  # the stair has no room for more
    wide = {2: {2: 1.0, 8: 1.3, 16: 2.0}}
    assert tried((0.1,) * 7, wide) == (4, 2)  # of 6
    assert tried((0.1, 0.1, 0.2, 0.2, 0.2, 0.2, 0.2), wide) == (2, 2)
    assert tried((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), wide) == (1, 1)
    narrow = {2: {2: 1.0, 3: 1.3, 16: 2.0}}
    assert tried((0.1,) * 7, narrow) == (1, 0) and tried((0.1,) * 7, narrow, known=2.0) == (0, 1)
