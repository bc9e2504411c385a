"""How many drafts the rows of a step have: the controller with what it remembers from step to step. No torch."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from headrace.speculate.acceptance import Acceptance
from headrace.speculate.controller import choose, earned
from headrace.speculate.costs import StepCosts
from headrace.speculate.kept_choice import KeptChoice
from headrace.speculate.loop_time import LoopTime
from headrace.speculate.outcomes import Outcomes

_KEPT_S, _LONGEST_S = 0.02, 0.1
"""How long a choice stays, at least and at most."""
_CHOOSING = 0.005
"""Of the time, what the device may wait for choices."""
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
    meanwhile is taken into account with the next choice. Where the device waits while the host chooses, a choice stays for so
    long that this is little of the time; it is made for all that rows may come to have, and rows that come wait for the next
    one. No step takes less than the host does for one (`loop_time`): drafts cost what the device has no time for.
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
        self._news = Outcomes()
        self._loop, self._over_s = LoopTime(), 0.0
        self._flight: deque[bool] = deque()  # of the steps that are planned and not over: whether they are usual
        self._kept: KeptChoice | None = None
        self._kept_steps, self._charged_s, self._late_s = 0, 0.0, 0.0

    def begin(self, slot: int) -> None:
        self._learn()
        self._acceptance.begin(slot)
        if self._kept is not None:
            self._kept = self._kept.without(slot)

    def choose(self, slots: Sequence[int], limits: Sequence[int], contexts: Sequence[int]) -> tuple[int, ...]:
        found = self._same(slots, limits) or self._anew(slots, limits, contexts)
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
        self._news.add(slots, drafted, accepted)
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
        """As chosen before, or None where that was for other rows or is too long ago."""
        kept = self._kept.for_rows(slots) if self._kept is not None and self._kept_steps > 0 else None
        if kept is None or not kept.suffices(limits):
            return None
        self._kept, self._kept_steps = kept, self._kept_steps - 1
        self._credit_s = earned(self._credit_s, kept.step_s)
        return kept.drafts(limits, tries=self._pay(kept.try_s))

    def _anew(self, slots: Sequence[int], limits: Sequence[int], contexts: Sequence[int]) -> tuple[int, ...]:
        began_s = self._clock()
        self._learn()
        late = self._late_s > 0
        may = [self.most] * len(slots) if late or not self._loop.keeps_up else limits
        rows = np.array(slots, dtype=np.int64)
        choice = choose(
            self._acceptance.survival(rows), np.array(may, dtype=np.int64), np.array(contexts, dtype=np.int64),
            self._acceptance.seen(rows), self._costs, self._credit_s, self._loop.host_s,
        )
        self._credit_s, self._charged_s, self.gain = choice.credit_s, choice.try_s if choice.tried else 0.0, choice.gain
        self._kept = KeptChoice.of(choice, slots, may, guesses=late)
        self._late_s = max(0.0, self._clock() - began_s - self._loop.spare_s)
        kept_s = min(_LONGEST_S, max(_KEPT_S, self._late_s / _CHOOSING))
        self._kept_steps = int(kept_s / choice.usual_s)
        return tuple(map(min, choice.drafts, limits))

    def _pay(self, try_s: float) -> bool:
        """Whether there is enough for a try, which is charged then."""
        if try_s > self._credit_s:
            return False
        self._credit_s, self._charged_s = self._credit_s - try_s, try_s
        return True

    def _learn(self) -> None:
        """Take in what was observed since the last choice."""
        if self._news:
            self._acceptance.observe(*self._news.take())

    def _judge(self) -> None:
        """Say it, once, where first drafts are accepted more seldom than they cost with as many rows as there were."""
        self._judged = True
        share, least = self._taken / self._tried, self._due / self._tried
        if share < least:
            _LOG.warning(
                "drafts do not pay so far: %.0f %% of the first ones are accepted, %.0f %% would have to be; few are made now",
                100 * share, 100 * least,
            )
