"""A plan in the making."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.scheduler.sequence import Sequence
from headrace.types import Admission, PageCopy, PageUpdate, Row


@dataclass(slots=True)
class Step:
    """number: the plan's. sequences: those of the rows. tokens: of all rows, drafts included."""

    number: int
    prompt_tokens_left: int
    admissions: list[Admission] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    page_copies: list[PageCopy] = field(default_factory=list)
    tokens: int = 0

    def add(
        self, sequence: Sequence, tokens: tuple[int, ...], updates: tuple[PageUpdate, ...], *, samples: bool,
        drafts: tuple[int, ...] = (), asked: int = 0,
    ) -> None:
        """A row of the sequence: its next known tokens, or without any its slot's next token."""
        assert sequence.holding is not None
        row = Row(sequence.id, sequence.holding.slot, sequence.planned, tokens, drafts, updates, samples, asked)
        self.rows.append(row)
        self.sequences.append(sequence)
        count, draft_count = len(tokens), len(drafts) or asked
        self.prompt_tokens_left -= count
        self.tokens += (count or 1) + draft_count
        sequence.planned += count or 1
        sequence.drafted += draft_count
        sequence.in_flight += 1
        sequence.unseen += samples
