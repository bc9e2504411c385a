"""The controller in the simulator of benchmarks/speculation.py, on the cost table there: never a loss, exploration included."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.speculation import ACCEPTANCE, DRAFTS, USERS, fixed_rate, h200_costs, mixed, simulate

COSTS, FREE = h200_costs(), h200_costs(drafter=False)
QUICK = (1, 4, 8, 32, 64)


def never_a_loss(users: int, seed: int, *, free: bool = False) -> None:
    """0.97 of the better of no drafts and the best fixed number, from step 200 on; more than both where users differ."""
    costs = FREE if free else COSTS
    shares = {chance: simulate([chance] * users, costs, seed=seed).share for chance in ACCEPTANCE}
    assert min(shares.values()) >= 0.97, shares
    if users > 1:
        assert simulate(mixed(users), costs, seed=seed).share > 1.0


@pytest.mark.parametrize("users", QUICK)
def test_never_a_loss(users: int) -> None:
    never_a_loss(users, seed=0)


@pytest.mark.long
@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("users", USERS)
def test_never_a_loss_on_the_whole_grid(users: int, seed: int, free: bool) -> None:
    never_a_loss(users, seed, free=free)


@pytest.mark.parametrize(("users", "steps"), [(1, 50), (8, 50), (64, 100)])
def test_a_drafter_that_was_bad_is_found_to_be_good(users: int, steps: int) -> None:
    """Acceptance goes from 0 to 0.95: after so many steps it is drafted for again."""
    outcome = simulate([0.0] * users, COSTS, steps=400 + steps + 200, changes=[0.95] * users, changes_at=400)
    after = outcome.rates[400 + steps :]
    assert sum(outcome.drafts[300:400]) < 0.2 * users * 100
    assert sum(after) / len(after) > 0.97 * max(outcome.off, outcome.fixed)


@pytest.mark.parametrize("users", [1, 8, 64])
def test_a_drafter_that_becomes_bad_is_left(users: int) -> None:
    """Acceptance goes from 0.95 to 0: after 100 steps next to nothing is drafted."""
    outcome = simulate([0.95] * users, COSTS, steps=600, changes=[0.0] * users, changes_at=300)
    after = outcome.rates[400:]
    assert sum(after) / len(after) > 0.97 * outcome.off


def test_the_table_is_the_measured_one() -> None:
    for users, plain, verify in ((1, 4.56, 5.1), (8, 5.44, 9.3), (32, 8.0, 26.9), (64, 11.2, 50.6)):
        stairs = FREE.stairs(users)
        assert stairs[0] == pytest.approx(plain / 1e3) and stairs[users * DRAFTS] == pytest.approx(verify / 1e3)
        assert (np.diff(stairs) >= 0).all() and len(set(stairs.tolist())) == 4
    assert fixed_rate(np.array([0.5]), 1, FREE) == pytest.approx(1.5 / (4.56e-3 + (5.1e-3 - 4.56e-3) / 7))


def test_the_same_seed_is_the_same_outcome() -> None:
    first, second = (simulate([0.6] * 8, COSTS, steps=250) for _ in range(2))
    assert first.drafts == second.drafts and first.rates == second.rates
