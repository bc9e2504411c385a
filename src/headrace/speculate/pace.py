"""How many drafts the rows of a step have: the controller with what it remembers from step to step. No torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from headrace.speculate.acceptance import Acceptance
from headrace.speculate.controller import Choice, choose
from headrace.speculate.costs import StepCosts

_JUDGED = 400
"""First drafts that have been tried when it is said that they do not pay."""
_LOG = logging.getLogger("headrace")


class Pace(Protocol):
    """Asked by the scheduler. most: the most drafts of a row. chosen: of all rows of the last step. gain: what drafts are
    expected to add to the tokens a second, 0.5 is half as much more.
    """

    most: int
    chosen: int
    gain: float

    def begin(self, slot: int) -> None:
        """A new sequence has the slot."""
        ...

    def choose(self, slots: Sequence[int], limits: Sequence[int], contexts: Sequence[int]) -> tuple[int, ...]:
        """Drafts of each row of a step, no more than its limit, for sequences of so many tokens."""
        ...

    def observe(self, slots: Sequence[int], drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """What came of the rows of a step."""
        ...


class FixedPace:
    """As many drafts in every row as it may have, `count` at the most: what the controller is measured against."""

    def __init__(self, most: int, count: int) -> None:
        self.most, self.count, self.chosen, self.gain = most, count, 0, 0.0

    def begin(self, slot: int) -> None:
        """Nothing is remembered."""

    def choose(self, slots: Sequence[int], limits: Sequence[int], contexts: Sequence[int]) -> tuple[int, ...]:
        counts = tuple(min(self.count, limit) for limit in limits)
        self.chosen = sum(counts)
        return counts

    def observe(self, slots: Sequence[int], drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Nothing is remembered."""


class MeasuredPace:
    """`speculate.controller` over measured costs, and the acceptance of `slots` slots' drafts."""

    def __init__(self, slots: int, most: int, costs: StepCosts) -> None:
        self.most, self.chosen, self.gain = most, 0, 0.0
        self._costs, self._acceptance = costs, Acceptance(slots, most)
        self._credit_s, self._tried, self._taken, self._judged = 0.0, 0, 0, False

    def begin(self, slot: int) -> None:
        self._acceptance.begin(slot)

    def choose(self, slots: Sequence[int], limits: Sequence[int], contexts: Sequence[int]) -> tuple[int, ...]:
        rows, acceptance = np.array(slots, dtype=np.int64), self._acceptance
        found: Choice = choose(
            acceptance.survival(rows), np.array(limits, dtype=np.int64), np.array(contexts, dtype=np.int64),
            acceptance.seen(rows), self._costs, self._credit_s,
        )
        self._credit_s, self.gain, self.chosen = found.credit_s, found.gain, sum(found.drafts)
        return found.drafts

    def observe(self, slots: Sequence[int], drafted: Sequence[int], accepted: Sequence[int]) -> None:
        if not slots:
            return
        given, kept = np.array(drafted, dtype=np.int64), np.array(accepted, dtype=np.int64)
        self._acceptance.observe(np.array(slots, dtype=np.int64), given, kept)
        self._tried += int((given > 0).sum())
        self._taken += int((kept > 0).sum())
        if not self._judged and self._tried >= _JUDGED:
            self._judge()

    def _judge(self) -> None:
        """Say it, once, where the first of a lone row's drafts are accepted more seldom than they cost."""
        self._judged = True
        stairs, drafting = self._costs.stairs(1), self._costs.drafting(1, 1)
        least = float((stairs[min(1, len(stairs) - 1)] + drafting[1]) / stairs[0] - 1)
        share = self._taken / self._tried
        if share < least:
            _LOG.warning(
                "drafts do not pay so far: %.0f %% of the first ones are accepted, %.0f %% would have to be; few are made now",
                100 * share, 100 * least,
            )
