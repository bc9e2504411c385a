"""A choice of drafts that stays for some steps. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.speculate.controller import Choice


@dataclass(frozen=True, slots=True)
class KeptChoice:
    """usual, with_tries: drafts of each of `slots`; may: how many it might have had when they were chosen. step_s: of a step as
    usual. try_s: what tries are charged. guess: drafts of a row that comes, if it waits for the next choice.
    """

    slots: tuple[int, ...]
    may: tuple[int, ...]
    usual: tuple[int, ...]
    with_tries: tuple[int, ...]
    step_s: float
    try_s: float
    guess: int | None

    @classmethod
    def of(cls, choice: Choice, slots: Sequence[int], may: Sequence[int], *, guesses: bool) -> KeptChoice:
        """guesses: rows that come have as many drafts as the others have on average."""
        guess = round(sum(choice.usual) / len(slots)) if guesses else None
        return cls(tuple(slots), tuple(may), choice.usual, choice.with_tries, choice.usual_s, choice.try_s, guess)

    def for_rows(self, slots: Sequence[int]) -> KeptChoice | None:
        """The same for these rows; None where one of them has to be chosen for."""
        slots = tuple(slots)
        if slots == self.slots:
            return self
        unknown = None if self.guess is None else (self.guess, self.guess, self.guess)
        known = dict(zip(self.slots, zip(self.may, self.usual, self.with_tries, strict=True), strict=True))
        found = [known.get(slot, unknown) for slot in slots]
        rows = [row for row in found if row is not None]
        if len(rows) < len(found) or not rows:
            return None
        may, usual, with_tries = zip(*rows, strict=True)
        return replace(self, slots=slots, may=may, usual=usual, with_tries=with_tries)

    def without(self, slot: int) -> KeptChoice:
        """The same, which another sequence has now."""
        return replace(self, slots=tuple(-1 if each == slot else each for each in self.slots))

    def suffices(self, limits: Sequence[int]) -> bool:
        """Whether no row may have more drafts than it was chosen for, and has all of those."""
        if max(limits) <= min(self.may):
            return True
        return not any(limit > most == drafts for limit, most, drafts in zip(limits, self.may, self.usual, strict=True))

    def drafts(self, limits: Sequence[int], *, tries: bool) -> tuple[int, ...]:
        chosen = self.with_tries if tries else self.usual
        if max(chosen) <= min(limits):
            return chosen
        return tuple(limits) if min(chosen) >= max(limits) else tuple(map(min, chosen, limits))
