"""Who proposes drafts, as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.types import Request


class Drafter(Protocol):
    """Proposes what may follow. most: the longest proposal that it ever makes."""

    most: int

    def propose(self, request: Request, output: Sequence[int], unseen: int, most: int) -> tuple[int, ...]:
        """At most `most` drafts for the request's next row.

        output: tokens that it is known to have generated; `unseen` of its rows, of which each will add one or more, are not
        committed yet. The drafts follow the last of those tokens.
        """
        ...
