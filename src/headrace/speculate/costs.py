"""What a step takes, as measured: a staircase of token counts for every number of rows that steps run as."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_HALVINGS = 40


@dataclass(frozen=True)
class StepCosts:
    """Measured seconds of steps.

    steps: for each number of rows that steps run as, token counts that they run as and the seconds of each. A step of R rows
    runs as the first number of rows that is R or more, without drafts as one token each, and with D of them as the fastest of
    the other token counts that have room for as many tokens and D more. drafter: for the same numbers of rows, seconds to draft
    1, 2, ... tokens for each; where it ends is the most drafts of a row. Empty: drafts take no time, and a row has as many as
    the steps have room for.
    context: tokens that the rows had before them in the measurement. context_s, draft_context_s: what a step takes longer for a
    token more before a row, and for a draft of that row besides.
    """

    steps: Mapping[int, Mapping[int, float]]
    drafter: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    context: int = 0
    context_s: float = 0.0
    draft_context_s: float = 0.0
    _stairs: dict[int, Floats] = field(default_factory=dict, init=False, repr=False, compare=False)
    _break_even: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.steps or any(not stairs or min(stairs) > rows for rows, stairs in self.steps.items()):
            raise ValueError("step costs need, for every number of rows, a step of one token a row")
        if self.drafter and set(self.drafter) != set(self.steps):
            raise ValueError(f"drafter costs are of {sorted(self.drafter)} rows, step costs of {sorted(self.steps)}")

    def stairs(self, rows: int) -> Floats:
        """Seconds of a step of `rows` rows by its drafts, 0, 1, ... as many as any step of so many rows can have. Never less
        with drafts than without: where it was measured so, that is the measurement's noise.
        """
        if rows not in self._stairs:
            size = self._size(rows)
            steps = self.steps[size]
            seconds = [steps[self.count(size, drafts)] for drafts in range(max(steps) - min(steps) + 1)]
            self._stairs[rows] = np.maximum(seconds, seconds[0])
        return self._stairs[rows]

    def count(self, size: int, drafts: int) -> int:
        """The token count that a step of so many drafts runs as, where steps run as `size` rows. A larger one may be faster."""
        steps, least = self.steps[size], min(self.steps[size])
        fitting = [count for count in steps if count >= least + drafts and (count > least or not drafts)]
        return min(fitting, key=lambda count: (steps[count], count)) if drafts else least

    def drafting(self, rows: int, most: int) -> Floats:
        """[most + 1]: seconds to draft 0, 1, ... most tokens for each of `rows` rows; infinite where the drafter ends."""
        known = self.drafter[self._size(rows)][:most] if self.drafter else (0.0,) * most
        return np.array([0.0, *known, *(math.inf,) * (most - len(known))])

    def break_even(self, rows: int) -> float:
        """The least chance of each draft with which some number of drafts in each of so many rows pays; 1 if none does."""
        if rows not in self._break_even:
            stairs = self.stairs(rows)
            counts = np.arange(1, (len(stairs) - 1) // rows + 1)
            seconds = (stairs[counts * rows] + self.drafting(rows, len(counts))[1:]) / stairs[0]
            low, high = 0.0, 1.0
            for _ in range(_HALVINGS):
                chance = (low + high) / 2
                tokens = 1 + np.cumsum(chance**counts)
                low, high = (low, chance) if (tokens >= seconds).any() else (chance, high)
            self._break_even[rows] = high
        return self._break_even[rows]

    def behind(self, rows: int, drafts: int, before: int) -> float:
        """Seconds more of a step of so many drafts in all, where the one before it had `before`: without any it takes as long
        as one with a few, since states take in what was accepted.
        """
        stairs = self.stairs(rows)
        return float(stairs[min(1, len(stairs) - 1)] - stairs[0]) if before and not drafts else 0.0

    def seconds(self, drafts: NDArray[np.int64], contexts: NDArray[np.int64], most: int) -> float:
        """Of a step of rows with [R] drafts each, `most` at the most, behind [R] tokens."""
        context_s, draft_s = self.beside(contexts.astype(np.float64))
        step_s = self.stairs(len(drafts))[drafts.sum()] + self.drafting(len(drafts), most)[drafts.max()]
        return float(step_s) + context_s + float(draft_s @ drafts)

    def beside(self, contexts: Floats) -> tuple[float, Floats]:
        """Seconds more for rows of [R] tokens before them: of the step, and [R] of each draft of a row."""
        more = np.maximum(0.0, contexts - self.context)
        return self.context_s * float(more.sum()), self.draft_context_s * more

    def _size(self, rows: int) -> int:
        sizes = sorted(self.steps)
        if rows > sizes[-1]:
            raise ValueError(f"a step of {rows} rows was not measured; the most is {sizes[-1]}")
        return sizes[bisect_left(sizes, rows)]
