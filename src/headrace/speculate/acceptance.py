"""How likely drafts are to be accepted: estimates for every running sequence and position, from what was accepted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_USUAL, _LEAST, _MOST = 4.0, 1.0, 32.0
"""Trials that a guess is worth: where nothing is known of how alike sequences are, at the least and at the most."""
_FIRST = 1.0
"""Trials that the first guess is worth, to the engine's average."""
_FEWEST = 0.5
_SUREST = 0.99
_FIRST_SHARE = 0.25
"""Of all sequences' first drafts, what is as good as one's own, where sequences are alike."""
_LATEST = 12
"""First drafts that are looked at for a change."""
_FADE = 1 - 1 / _LATEST
_LEFT = 4.0
"""Trials that the latest ones count for when a change was found: some of them were before it."""
_WELL = 40.0
"""Trials from which a chance is so well known that less is hoped for: near break-even, hope would cost more than it finds."""
_SURPRISE = 3.0


class Acceptance:
    """Estimates by state slot and position. A position is the draft's number in its row; it is tried if those before it were
    accepted, so a row of n drafts of which m were accepted tells of the first min(n, m + 1) alone.

    What was seen of a sequence loses 1 / memory of its weight with every step, drafts or none: so one that is tried seldom is
    judged anew soon. The engine's average loses as much with every step that tries the position, and half of it otherwise:
    where nothing is accepted it goes on saying so, whatever the first guess was. When a sequence's latest first drafts are not
    what its estimate would make of them, all before them is forgotten. Behind a sequence's first draft stands the engine's
    average, behind each other the one before it, changed as the engine's average changes from there to here, since what is
    known of shallow drafts is the best guess for deep ones. They stand there as if they had been seen so many times as
    sequences are alike (`_likeness`). Nothing seen at all: `first_guess`.

    A first draft's chance is `hope` deviations above its estimate, and that of others half as many: what seems too low by
    chance would otherwise not be tried again, and stay so. Of what has been tried often it is fewer. Where nothing is ever
    accepted there is no deviation.
    """

    def __init__(
        self, slots: int, positions: int, *, memory: float = 160.0, first_guess: float = 0.7, hope: float = 1.0
    ) -> None:
        # By slot, and all of them together as the last; latest counts first drafts, tried and accepted.
        self._tried: Floats = np.zeros((slots + 1, positions))
        self._accepted: Floats = np.zeros((slots + 1, positions))
        self._latest: Floats = np.zeros((slots + 1, 2))
        self._keep, self._keep_idle = 1 - 1 / memory, 1 - 1 / (2 * memory)
        self._first_guess, self._hope = first_guess, hope

    def begin(self, slot: int) -> None:
        """A new sequence has the slot."""
        self._tried[slot] = self._accepted[slot] = 0
        self._latest[slot] = 0

    def observe(self, slots: Ints, drafted: Ints, accepted: Ints, sizes: Sequence[int] | None = None) -> None:
        """Rows are verified: [N] slots, how many drafts each had, how many were accepted. sizes: how many of them are each
        step's, for several steps one behind the other; None is one step.
        """
        sizes = [len(slots)] if sizes is None else sizes
        rows = np.flatnonzero(np.bincount(slots))  # [U], each slot once
        column = np.zeros(len(self._tried), dtype=np.int64)
        column[rows] = np.arange(len(rows))
        place = np.arange(len(sizes)).repeat(sizes) * len(rows) + column[slots]
        tried, taken, there = np.zeros((3, len(sizes) * len(rows)), dtype=np.int64)
        tried[place], taken[place], there[place] = np.minimum(drafted, accepted + 1), accepted, 1
        shape, position = (len(sizes), len(rows)), np.arange(self._tried.shape[1])[:, None]
        tries, hits = ((position < counts).astype(np.float64).reshape(-1, *shape) for counts in (tried, taken))  # [K, S, U]
        self._observe_slots(rows, tries, hits, there.reshape(shape))
        self._observe_all(tries.sum(2).T, hits.sum(2).T)
        self._forget_before_changes(np.append(rows, len(self._tried) - 1))

    def _observe_slots(self, rows: Ints, tries: Floats, hits: Floats, there: Ints) -> None:
        """[K, S, U]: of every slot its own rows, in their order. there [S, U]: whether the slot had one in the step."""
        counts = there.sum(0)  # [U]
        kept = _powers(self._keep, counts - there.cumsum(0))  # by the slot's later rows
        whole = (self._keep**counts)[:, None]
        self._tried[rows] = self._tried[rows] * whole + np.einsum("su,ksu->uk", kept, tries)
        self._accepted[rows] = self._accepted[rows] * whole + np.einsum("su,ksu->uk", kept, hits)
        self._latest[rows] = _latest(self._latest[rows], tries[0], hits[0])

    def _observe_all(self, tried: Floats, taken: Floats) -> None:
        """[S, K]: of all rows of each step."""
        kept = np.where(tried > 0, self._keep, self._keep_idle)
        since = np.cumprod(kept[::-1], axis=0)[::-1]  # from each step on
        behind = np.append(since[1:], np.ones_like(since[:1]), axis=0)
        self._tried[-1] = self._tried[-1] * since[0] + (tried * behind).sum(0)
        self._accepted[-1] = self._accepted[-1] * since[0] + (taken * behind).sum(0)
        self._latest[-1:] = _latest(self._latest[-1:], tried[:, :1], taken[:, :1])

    def survival(self, slots: Ints) -> Floats:
        """[R, K]: the chance that a draft and all before it are accepted. Never rises with the position."""
        weight, tried, everyone = self._likeness(), self._tried[slots], self._tried[-1]
        chance = self._chances(slots, weight)
        # Of deep drafts, whose chances multiply, all sequences tell; of first ones less so, where sequences are alike.
        share = np.ones(tried.shape[1])
        share[0] = _FIRST_SHARE if weight == _MOST else 0.0
        known = np.maximum(tried, share * everyone) + weight
        # Of a first draft a guess is no better than what it was made of.
        known[:, 0] += min(weight, everyone[0] + _FIRST) - weight
        hope = self._hope * np.sqrt(chance * (1 - chance) / known * np.minimum(_WELL / known, 1))
        hope[:, 1:] /= 2
        found: Floats = np.minimum(chance + hope, _SUREST).cumprod(1)
        return found

    def _chances(self, slots: Ints, weight: float) -> Floats:
        """[R, K] estimates: what was seen, and behind it the guess, for `weight` trials."""
        average = self._average()
        changes = np.divide(average[1:], average[:-1])
        seen, accepted = (self._tried[slots] + weight).T, self._accepted[slots].T  # [K, R]
        chance = (accepted[0] + weight * min(average[0], _SUREST)) / seen[0]
        chances = [chance]
        for change, hits, tries in zip(changes.tolist(), accepted[1:], seen[1:], strict=True):
            chance = (hits + weight * np.minimum(chance * change, _SUREST)) / tries
            chances.append(chance)
        return np.stack(chances, axis=1)

    def seen(self, slots: Ints) -> Floats:
        """[R]: how often a first draft was tried, less what is forgotten of it."""
        seen: Floats = self._tried[slots, 0]
        return seen

    def _forget_before_changes(self, rows: Ints) -> None:
        """Rows whose latest first drafts are far from their own rate: of what was seen little is left, and that as they are."""
        tried, accepted = self._tried[rows, 0], self._accepted[rows, 0]
        latest, taken = self._latest[rows].T
        rate = accepted / np.maximum(tried, _FEWEST)
        off = np.abs(taken - latest * rate) > _SURPRISE * np.sqrt(latest * rate * (1 - rate).clip(0) + 1)
        changed = rows[off & (tried > latest)]
        self._latest[changed] *= (_LEFT / self._latest[changed, 0]).clip(max=1)[:, None]
        left = (self._latest[changed, 0] / self._tried[changed, 0])[:, None]
        self._tried[changed] *= left
        self._accepted[changed] *= left
        self._accepted[changed, 0] = self._latest[changed, 1]

    def _average(self) -> Floats:
        """[K]: the engine's average, position by position."""
        chance, weight, chances = self._first_guess, _FIRST, []
        for tried, accepted in zip(self._tried[-1].tolist(), self._accepted[-1].tolist(), strict=True):
            chance = (accepted + weight * chance) / (tried + weight)
            chances.append(chance)
            weight = _USUAL
        return np.array(chances)

    def _likeness(self) -> float:
        """How many trials of a sequence the average is worth: many where all sequences are alike, few where they differ.

        Moments of the beta-binomial distribution of first drafts: with sequences' own chances of mean m and variance v, a beta
        prior has the weight m (1 - m) / v - 1. v is what the rates differ beyond what trials of one chance would.
        """
        counted = np.flatnonzero(self._tried[:-1, 0] > _FEWEST)
        tried, accepted = self._tried[counted, 0], self._accepted[counted, 0]
        if len(tried) < 2:
            return _USUAL
        total = tried.sum()
        mean = accepted.sum() / total
        spread = (tried * (accepted / tried - mean) ** 2).sum() / total
        by_chance = mean * (1 - mean) * (len(tried) - 1) / total
        between = (spread - by_chance) / (1 - (tried**2).sum() / total**2)
        if between <= mean * (1 - mean) / (1 + _MOST):
            return _MOST
        return max(_LEAST, float(mean * (1 - mean) / between - 1))


def _latest(before: Floats, tries: Floats, hits: Floats) -> Floats:
    """[U, 2], first drafts tried and accepted, with those of [S, U] later steps: each counts for less with every later one."""
    total = tries.sum(0)
    faded = _powers(_FADE, (total - tries.cumsum(0)).astype(np.int64))
    left = _FADE**total
    return np.stack([left * before[:, 0] + (faded * tries).sum(0), left * before[:, 1] + (faded * hits).sum(0)], axis=1)


def _powers(base: float, exponents: Ints) -> Floats:
    """Of whole numbers, which are looked up: there are few of them."""
    table: Floats = base ** np.arange(exponents.max() + 1)
    return table[exponents]
