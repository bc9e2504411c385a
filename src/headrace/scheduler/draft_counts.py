"""How many drafts rows have, and what comes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

from msgspec import structs

from headrace.plan.graph_rows import PromptShape, shape_of
from headrace.scheduler.sequence import Sequence
from headrace.speculate.pace import Pace
from headrace.types import MOST_DRAFTS, Row, RowResult


class DraftCounts:
    """Asks the pace, if there is one, tells it what was accepted, and counts: made and kept drafts by their number in a row.

    prompts: steps with prompts that are captured without drafts. chosen: drafts of all rows of the last step.
    """

    def __init__(self, most: int, pace: Pace | None, prompts: tuple[PromptShape, ...] = ()) -> None:
        self._pace, self._prompts, self.chosen = pace, prompts, 0
        self._made, self._kept = [0] * (most + 1), [0] * (most + 1)  # rows with so many drafts, and with so many accepted
        self._seen: list[tuple[int, int, int]] = []  # slot, drafts, accepted ones of this commit's rows
        self._asked_about = 0  # rows of the plan in the making

    @property
    def made(self) -> tuple[int, ...]:
        return _by_number(self._made)

    @property
    def kept(self) -> tuple[int, ...]:
        return _by_number(self._kept)

    @property
    def gain(self) -> float:
        return self._pace.gain if self._pace else 0.0

    @property
    def break_even(self) -> float:
        return self._pace.break_even if self._pace else 0.0

    def begin(self, sequence: Sequence) -> None:
        """The sequence has taken a slot."""
        sequence.proposes = MOST_DRAFTS
        if self._pace is not None and sequence.holding is not None:
            self._pace.begin(sequence.holding.slot)

    def choose(self, running: Iterable[Sequence]) -> Mapping[int, int]:
        """By sequence id: drafts that the next row of a decoding sequence asks the drafter on the device for."""
        if self._pace is None:
            return {}
        decoding = [s for s in running if s.decodes]
        self._asked_about = len(decoding)
        if not decoding:
            return {}
        most = self._pace.most
        limits = [min(most, s.tokens_left - 1, s.proposes) for s in decoding]
        slots = [s.holding.slot for s in decoding if s.holding is not None]
        counts = self._pace.choose(slots, limits, [s.planned for s in decoding])
        return dict(zip([s.id for s in decoding], counts, strict=True))

    def settle(self, rows: list[Row], sequences: Iterable[Sequence]) -> None:
        """All rows of a step are there. Beside prompts so short that the step is captured without drafts, none are asked for:
        launching it kernel by kernel would take several times as long, for all of its rows. Pages for them stay their
        sequences', whose next tokens take them.
        """
        prompts, asked = sum(1 for row in rows if row.tokens), sum([row.asked for row in rows])
        if asked and prompts and self._captured(rows):
            asked = 0
            for place, (row, sequence) in enumerate(zip(rows, sequences, strict=True)):
                rows[place] = structs.replace(row, asked=0)
                sequence.drafted -= row.asked
        self.chosen = asked + sum([len(row.drafts) for row in rows])
        if self._pace is not None and rows:
            self._pace.planned(asked, usual=not prompts and len(rows) == self._asked_about)

    def _captured(self, rows: list[Row]) -> bool:
        tokens, prompts = sum(len(row.tokens) or 1 for row in rows), sum(len(row.tokens) > 1 for row in rows)
        return shape_of(tokens, len(rows), prompts, self._prompts) is not None

    def note(self, row: Row, result: RowResult, sequence: Sequence) -> None:
        """A row is committed whose sequence goes on, or ends with it. It may have asked for drafts before it was known that
        there are none: as many were made as the drafter had behind the row before it.
        """
        there, sequence.proposes = sequence.proposes, result.proposes
        if row.tokens or not row.samples or sequence.holding is None:
            return
        kept = len(result.tokens) - 1
        made = max(kept, min(row.draft_count, there)) if row.asked else row.draft_count
        self._made[made] += 1
        self._kept[kept] += 1
        sequence.drafts_made += made
        sequence.drafts_kept += kept
        self._seen.append((sequence.holding.slot, made, kept))

    def observe(self, waited_s: float) -> None:
        """All rows of a step are committed, some at least, for which the host waited so long."""
        if self._pace is not None:
            slots, made, kept = zip(*self._seen, strict=True) if self._seen else ((), (), ())
            self._pace.observe(slots, made, kept, waited_s)
        self._seen = []


def _by_number(rows: list[int]) -> tuple[int, ...]:
    """Drafts by their number in a row, of rows by how many they have: a row of n has the first n."""
    return tuple(accumulate(reversed(rows[1:])))[::-1]
