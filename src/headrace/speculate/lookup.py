"""Drafts by lookup: what followed the last time that the sequence's newest tokens stood in it.

The definition: of suffixes of 12, 11, ... 6 tokens the first that stands somewhere earlier too, where it may overlap itself; of
its places the last. What follows there is proposed, and where that runs into the sequence's end, it goes on with what it
proposed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.types import Request

SHORTEST, LONGEST, MOST = 6, 12, 15
_REMEMBERED = 256
"""Sequences whose tokens are kept; one that was forgotten is read again."""
_PIECE = 512
_ROWS = 64
"""Uncommitted rows of a sequence whose draft counts are known."""
Tokens = NDArray[np.int32]


def latest_match(tokens: Tokens, shortest: int = SHORTEST, longest: int = LONGEST) -> int | None:
    """Where what followed begins: the end of the last place of the longest suffix that is there earlier. None without one.

    From the end on, in growing pieces: text that repeats itself has many places, and the longest suffix at one of the last.
    """
    best, found, end, piece = shortest - 1, None, len(tokens) - 1, _PIECE
    while end > 0 and best < longest:
        begin = max(0, end - piece)
        length, place = _longest_within(tokens, begin, end, longest)
        if length > best:
            best, found = length, place
        end, piece = begin, 4 * piece
    return found


def _longest_within(tokens: Tokens, begin: int, end: int, longest: int) -> tuple[int, int]:
    """The longest suffix, of at most `longest` tokens, whose last token stands at begin ... end - 1 too; and the last place
    behind it. Length 0 if there is none.
    """
    newest = len(tokens) - 1
    places, length = begin + np.flatnonzero(tokens[begin:end] == tokens[newest]), 0
    while len(places):
        length, last = length + 1, int(places[-1]) + 1
        if length == longest:
            break
        places = places[np.searchsorted(places, length) :]
        places = places[tokens[places - length] == tokens[newest - length]]
    return (length, last) if length else (0, 0)


def continuation(tokens: Tokens, match: int, skipped: int, count: int) -> tuple[int, ...]:
    """`count` tokens of what follows at `match`, from the token `skipped` on; beyond the end it repeats from `match` on."""
    at = match + np.arange(skipped, skipped + count) % (len(tokens) - match)
    return tuple(tokens[at].tolist())


class _History:
    """A sequence's tokens, appended to as they become known, and the draft counts of its newest rows."""

    def __init__(self, request: Request) -> None:
        self.request, self.rows = request, deque[int](maxlen=_ROWS)
        self._tokens: Tokens = np.array(request.prompt, dtype=np.int32)
        self._known = len(request.prompt)

    def tokens(self, output: Sequence[int]) -> Tokens:
        known = len(self.request.prompt) + len(output)
        if known > len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros(max(1024, known), dtype=np.int32)])
        if known > self._known:
            self._tokens[self._known : known] = output[self._known - known :]
        self._known = known
        return self._tokens[:known]

    def in_flight(self, rows: int) -> int:
        """Tokens that so many uncommitted rows yield if all of their drafts are accepted. A row not remembered had none."""
        return rows + sum(list(self.rows)[-rows:]) if rows else 0


class LookupDrafter:
    """The drafter by lookup on the host, as the scheduler asks it (`scheduler.drafter.Drafter`).

    The newest tokens are unknown while rows are uncommitted. Then it looks up the tokens that are known, and goes on behind
    what those rows yield if all of their drafts are accepted; are they not, what it proposed is rejected too, and the next
    proposal comes from the tokens then known.
    """

    def __init__(self, most: int = MOST, shortest: int = SHORTEST, longest: int = LONGEST) -> None:
        if not (1 <= most and 1 <= shortest <= longest):
            raise ValueError(f"lookup of {most} drafts by suffixes of {shortest} to {longest} tokens")
        self.most, self._shortest, self._longest = most, shortest, longest
        self._histories: OrderedDict[str, _History] = OrderedDict()

    def propose(self, request: Request, output: Sequence[int], unseen: int, most: int) -> tuple[int, ...]:
        history = self._history(request)
        tokens = history.tokens(output)
        match = latest_match(tokens, self._shortest, self._longest)
        drafts: tuple[int, ...] = ()
        if match is not None:
            drafts = continuation(tokens, match, history.in_flight(unseen), min(most, self.most))
        history.rows.append(len(drafts))
        return drafts

    def _history(self, request: Request) -> _History:
        history = self._histories.get(request.id)
        if history is None or history.request is not request:
            history = self._histories[request.id] = _History(request)
        self._histories.move_to_end(request.id)
        if len(self._histories) > _REMEMBERED:
            self._histories.popitem(last=False)
        return history
