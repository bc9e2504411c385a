"""How many drafts the rows of a step have: the controller with what it remembers from step to step. No torch."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from headrace.speculate.acceptance import Acceptance
from headrace.speculate.controller import TRIED_SHARE, Choice, choose
from headrace.speculate.costs import StepCosts
from headrace.speculate.loop_time import LoopTime

_KEPT_S, _KEPT_WAITING_S = 0.02, 0.06
"""How long a choice stays, and where steps wait for the host: choosing and estimating take it a third of a millisecond."""
_JUDGED = 100
"""First drafts that have been tried when it is said that they do not pay."""
_LOG = logging.getLogger("headrace")


class Pace(Protocol):
    """Asked by the scheduler, which then tells of each step that has rows that it is planned and, in the same order, what came
    of it. most: the most drafts of a row. chosen: of all rows of the last step. gain: what drafts are
    expected to add to the tokens a second, 0.5 is half as much more. break_even: the least chance of a draft to be
    accepted with which drafts pay, with as many rows as the last step had.
    """

    most: int
    chosen: int
    gain: float
    break_even: float

    def begin(self, slot: int) -> None:
        """A new sequence has the slot."""
        ...

    def choose(self, slots: Sequence[int], limits: Sequence[int], contexts: Sequence[int]) -> tuple[int, ...]:
        """Drafts of each row of a step, no more than its limit, for sequences of so many tokens."""
        ...

    def planned(self, drafts: int, *, usual: bool) -> None:
        """A step is planned: with so many of the drafts that were chosen for it. usual: of the rows alone that they were
        chosen for.
        """
        ...

    def observe(self, slots: Sequence[int], drafted: Sequence[int], accepted: Sequence[int], waited_s: float) -> None:
        """What came of the rows of a step that decoded, and how long the host waited for the device in it."""
        ...


class FixedPace:
    """As many drafts in every row as it may have, `count` at the most: what the controller is measured against."""

    def __init__(self, most: int, count: int) -> None:
        self.most, self.count, self.chosen, self.gain, self.break_even = most, count, 0, 0.0, 0.0

    def begin(self, slot: int) -> None:
        """Nothing is remembered."""

    def choose(self, slots: Sequence[int], limits: Sequence[int], contexts: Sequence[int]) -> tuple[int, ...]:
        return tuple(min(self.count, limit) for limit in limits)

    def planned(self, drafts: int, *, usual: bool) -> None:
        self.chosen = drafts

    def observe(self, slots: Sequence[int], drafted: Sequence[int], accepted: Sequence[int], waited_s: float) -> None:
        """Nothing is remembered."""


class MeasuredPace:
    """`speculate.controller` over measured costs, and the acceptance of `slots` slots' drafts.

    A choice stays for some milliseconds, several of a small model's steps, since choosing takes the host as long as such a
    step: until then, or until a sequence comes, or a row may have more drafts than it was chosen for. What is accepted
    meanwhile is taken into account with the next choice. Where the host does not keep up with the device (`loop_time`), drafts
    cost what the device has no time for, and a choice is made for all that rows may come to have.
    """

    def __init__(
        self, slots: int, most: int, costs: StepCosts, clock: Callable[[], float] = time.perf_counter, *,
        quiet: bool = False,
    ) -> None:
        """quiet: drafts that do not pay are not complained of."""
        self.most, self.chosen, self.gain, self.break_even = most, 0, 0.0, 0.0
        self._costs, self._acceptance, self._clock = costs, Acceptance(slots, most), clock
        self._credit_s, self._judged = 0.0, quiet
        self._tried, self._taken, self._due = 0, 0, 0.0  # first drafts; accepted ones; how many would have had to be
        self._news: list[tuple[Sequence[int], Sequence[int], Sequence[int]]] = []  # slots, drafted, accepted of steps
        self._loop, self._over_s = LoopTime(), 0.0
        self._flight: deque[bool] = deque()  # of the steps that are planned and not over: whether they are usual
        self._kept: dict[int, tuple[int, int]] = {}  # by slot: drafts, and how many it might have had
        self._kept_steps, self._earned_s, self._charged_s = 0, 0.0, 0.0

    def begin(self, slot: int) -> None:
        self._learn()
        self._acceptance.begin(slot)
        self._kept.pop(slot, None)

    def choose(self, slots: Sequence[int], limits: Sequence[int], contexts: Sequence[int]) -> tuple[int, ...]:
        found = self._same(slots, limits) if self._kept_steps > 0 else None
        if found is None:
            found = self._anew(slots, limits, contexts)
        self.break_even = self._costs.break_even(len(slots))
        return found

    def planned(self, drafts: int, *, usual: bool) -> None:
        self._flight.append(usual)
        self.chosen = drafts
        if not drafts:
            self._credit_s += self._charged_s  # nothing was tried
        self._charged_s = 0.0

    def observe(self, slots: Sequence[int], drafted: Sequence[int], accepted: Sequence[int], waited_s: float) -> None:
        self._note(waited_s)
        if not slots:
            return
        self._news.append((slots, drafted, accepted))
        if not self._judged:
            tried = sum(1 for count in drafted if count)
            self._tried, self._due = self._tried + tried, self._due + tried * self._costs.break_even(len(slots))
            self._taken += sum(1 for count in accepted if count)
            if self._tried >= _JUDGED:
                self._judge()

    def _note(self, waited_s: float) -> None:
        """A step is over. What others take is told of no step: those with prompts, those before them, whose time holds the
        launch of the prompts, and those behind a pause, which begin with a sequence that nobody was asked about.
        """
        before_s, self._over_s = self._over_s, self._clock()
        if all(self._flight):
            self._loop.note(self._over_s - before_s, waited_s)
        self._flight.popleft()

    def _same(self, slots: Sequence[int], limits: Sequence[int]) -> tuple[int, ...] | None:
        """As chosen before, or None where that was for other rows."""
        found = []
        for slot, limit in zip(slots, limits, strict=True):
            drafts, most = self._kept.get(slot, (-1, -1))
            if limit > most == drafts:
                return None
            found.append(min(drafts, limit))
        self._kept_steps -= 1
        self._credit_s += self._earned_s
        return tuple(found)

    def _anew(self, slots: Sequence[int], limits: Sequence[int], contexts: Sequence[int]) -> tuple[int, ...]:
        self._learn()
        least_s = self._loop.least_s
        rows, may = np.array(slots, dtype=np.int64), np.array([self.most] * len(slots) if least_s else limits, dtype=np.int64)
        choice: Choice = choose(
            self._acceptance.survival(rows), may, np.array(contexts, dtype=np.int64), self._acceptance.seen(rows), self._costs,
            self._credit_s, least_s,
        )
        self._credit_s, self._charged_s, self.gain = choice.credit_s, choice.charged_s, choice.gain
        self._kept = dict(zip(slots, zip(choice.drafts, may.tolist(), strict=True), strict=True))
        kept_s = _KEPT_WAITING_S if least_s else _KEPT_S
        self._kept_steps = 0 if choice.tried else int(kept_s / choice.seconds)  # a try is for one step
        self._earned_s = TRIED_SHARE * choice.seconds
        return tuple(min(count, limit) for count, limit in zip(choice.drafts, limits, strict=True))

    def _learn(self) -> None:
        """Take in what was observed since the last choice."""
        if not self._news:
            return
        slots, drafted, accepted = (np.concatenate(part, dtype=np.int64) for part in zip(*self._news, strict=True))
        self._acceptance.observe(slots, drafted, accepted, [len(step[0]) for step in self._news])
        self._news = []

    def _judge(self) -> None:
        """Say it, once, where first drafts are accepted more seldom than they cost with as many rows as there were."""
        self._judged = True
        share, least = self._taken / self._tried, self._due / self._tried
        if share < least:
            _LOG.warning(
                "drafts do not pay so far: %.0f %% of the first ones are accepted, %.0f %% would have to be; few are made now",
                100 * share, 100 * least,
            )
