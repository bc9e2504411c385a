"""How many drafts each row of a step has: what yields the most tokens a second by estimate, and now and then a try.

A pure function of what was known before the step. No token is among its arguments, so whether a draft is verified cannot
depend on that draft or on what the target says there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.speculate.costs import StepCosts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TRIED_SHARE = 0.01
"""Of the time, what may go into drafts that are expected to lose."""
LEAST_GAIN = 0.005
"""What drafts have to add to the rate, or there are none: times and estimates are not known better than that."""
_LEAST_TRY = 0.05
"""Of a step, what a try is charged at least: a draft that was measured to cost nothing would be tried in every step."""
_MOST_CREDIT = 2
"""Steps that tries may take at once."""
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Choice:
    """drafts: [R] of each row. tried: drafts among them that are there only so that their acceptance becomes known. tokens,
    seconds: of the step, as expected. gain: tokens a second beside those of a step without drafts, 0.5 is half as much more.
    credit_s: what is left for tries, for the next choice. For steps to which the same applies: usual, drafts [R] without
    tries; usual_s, what such a step takes; with_tries, [R] with them; try_s, what these are charged, infinite without any.
    """

    drafts: tuple[int, ...]
    tried: int
    tokens: float
    seconds: float
    gain: float
    credit_s: float
    usual: tuple[int, ...]
    usual_s: float
    with_tries: tuple[int, ...]
    try_s: float


@dataclass(frozen=True, slots=True)
class _Rows:
    """What a choice is made of. survival: [R, K]. limits: [R]. stairs, drafting: seconds by drafts of all and of a row.
    least_s: of any step.
    """

    survival: Floats
    limits: Ints
    stairs: Floats
    drafting: Floats
    context_s: float
    draft_s: Floats  # [R]
    least_s: float

    def seconds(self, drafts: Ints) -> float:
        own = self.context_s + float(self.draft_s @ drafts)
        return max(self.least_s, float(self.stairs[drafts.sum()] + self.drafting[drafts.max()]) + own)

    def tokens(self, drafts: Ints) -> float:
        return len(drafts) + float(self.survival[np.arange(self.survival.shape[1]) < drafts[:, None]].sum())


def choose(
    survival: Floats, limits: Ints, contexts: Ints, seen: Floats, costs: StepCosts, credit_s: float = 0.0,
    least_s: float = 0.0,
) -> Choice:
    """Drafts for each of R rows, one at least.

    survival: [R, K], the chance that draft k and all before it are accepted, not rising with k. limits: [R], the most drafts of
    each. contexts: [R] tokens before each. seen: [R], how well each row's acceptance is known (`Acceptance.seen`).
    credit_s: of the choice before. least_s: what the host takes for a step, for which the device waits.
    """
    rows, most = survival.shape
    context_s, draft_s = costs.beside(contexts.astype(np.float64))
    limits = np.minimum(limits, most)
    given = _Rows(survival, limits, costs.stairs(rows), costs.drafting(rows, most), context_s, draft_s, least_s)
    plain_s = given.seconds(np.zeros(rows, dtype=np.int64))
    usual = _best(given)
    usual_s = given.seconds(usual)
    tries = _tries(given, usual, seen)
    try_s = _try_s(given, usual, tries, usual_s, costs)
    credit_s = earned(credit_s, usual_s)
    paid = try_s <= credit_s
    drafts = usual + tries if paid else usual
    tokens, seconds = given.tokens(drafts), given.seconds(drafts)
    gain = tokens / seconds / (rows / plain_s) - 1
    return Choice(
        tuple(drafts.tolist()), int(tries.sum()) if paid else 0, tokens, seconds, gain, credit_s - try_s if paid else credit_s,
        tuple(usual.tolist()), usual_s, tuple((usual + tries).tolist()), try_s,
    )


def earned(credit_s: float, step_s: float) -> float:
    """What there is for tries, behind a step of so many seconds more."""
    return min(credit_s + TRIED_SHARE * step_s, _MOST_CREDIT * step_s)


def _try_s(given: _Rows, usual: Ints, tries: Ints, usual_s: float, costs: StepCosts) -> float:
    """What tries are charged. They are in one step, and that behind it has none."""
    if not tries.any():
        return math.inf
    behind_s = costs.behind(len(usual), int(usual.sum()), int(tries.sum()))
    return max(given.seconds(usual + tries) - usual_s + behind_s, _LEAST_TRY * usual_s)


def _best(given: _Rows) -> Ints:
    """The drafts of most expected tokens a second; none where that is hardly more than without.

    For a price of a second, in tokens, the best B drafts are the B whose chance less the price of their own time is highest,
    whatever the stairs are; so every B is looked at, each stair's edge among them, for each depth that a drafter can be asked
    for. The price is the rate itself (Dinkelbach): it starts as that without drafts and rises with what is found. Where drafts
    have no time of their own the order does not depend on it, and once is enough.
    """
    none = best = np.zeros(len(given.limits), dtype=np.int64)
    plain = rate = given.tokens(best) / given.seconds(best)
    for _ in range(_ROUNDS if given.draft_s.any() else 1):
        better, found = _best_at(given, rate)
        if found <= rate:
            break
        best, rate = better, found
    return best if rate >= (1 + LEAST_GAIN) * plain else none


def _best_at(given: _Rows, price: float) -> tuple[Ints, float]:
    """The best drafts among those in the order that a price makes, and their rate."""
    rows, most = given.survival.shape
    worth = given.survival - price * given.draft_s[:, None]
    worth = np.where(np.arange(most) < given.limits[:, None], worth, -np.inf).ravel()
    order = np.argsort(-worth, kind="stable")[: int(given.limits.sum())]  # earlier drafts of a row come first
    row, position = order // most, order % most
    chance, own_s = given.survival.ravel()[order], given.draft_s[row]
    best, best_rate = np.zeros(rows, dtype=np.int64), 0.0
    for depth in _depths(given.drafting):
        fits = np.flatnonzero(position < depth)[: len(given.stairs) - 1]
        if len(fits) == 0:
            continue
        seconds = given.stairs[1 : len(fits) + 1] + (given.context_s + given.drafting[depth]) + np.cumsum(own_s[fits])
        rates = (rows + np.cumsum(chance[fits])) / np.maximum(seconds, given.least_s)
        count = int(rates.argmax()) + 1
        if rates[count - 1] > best_rate:
            best, best_rate = np.bincount(row[fits[:count]], minlength=rows), float(rates[count - 1])
    return best, best_rate


def _depths(drafting: Floats) -> list[int]:
    """Drafts of a row that are worth looking at as a limit: each that is not as cheap as one more."""
    deepest = _deepest(drafting)
    return [k for k in range(1, deepest + 1) if k == deepest or drafting[k + 1] > drafting[k]]


def _deepest(drafting: Floats) -> int:
    """The most drafts that the drafter makes for a row."""
    return int(np.isfinite(drafting).sum()) - 1


def _tries(given: _Rows, drafts: Ints, seen: Floats) -> Ints:
    """[R] drafts more, as many as the next stair has room for: one for each row that would have none, least known first, and
    behind it others that the drafter makes in the same time; or where all have some, those most likely to be accepted.
    """
    tries = np.zeros_like(drafts)
    total, idle = int(drafts.sum()), np.flatnonzero((drafts == 0) & (given.limits > 0))
    if total + 1 >= len(given.stairs):
        return tries
    room = int(np.searchsorted(given.stairs[total + 1 :], given.stairs[total + 1], side="right"))
    if len(idle):
        tries[idle[np.argsort(seen[idle], kind="stable")[:room]]] = 1
        for depth in range(1, int(np.flatnonzero(given.drafting <= given.drafting[max(1, drafts.max())])[-1])):
            behind = np.flatnonzero((tries == depth) & (given.limits > depth))
            tries[behind[: room - int(tries.sum())]] += 1
        return tries
    most = given.survival.shape[1]
    position = np.arange(most)
    deeper = (position >= drafts[:, None]) & (position < np.minimum(given.limits, _deepest(given.drafting))[:, None])
    order = np.argsort(-np.where(deeper, given.survival, -1.0).ravel(), kind="stable")[: min(room, int(deeper.sum()))]
    return np.bincount(order // most, minlength=len(drafts))
