"""Finds stop strings in a text that arrives in pieces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Found:
    """A stop string and how many characters of the piece came before its end."""

    text: str
    end: int


class StopStrings:
    """Knuth-Morris-Pratt over several stop strings: constant work a character, however the text is cut into pieces.

    The stop string that is complete first wins; of those complete at the same character the longest, which starts first.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = sorted(stops, key=len, reverse=True)
        self._fallbacks = [_fallbacks(stop) for stop in self._stops]
        self._first = {stop[0] for stop in stops}
        self._matched = [0] * len(stops)
        self.held = 0
        """Characters at the text's end that a stop string may start with: the longest beginning of one."""

    def push(self, piece: str, *, honoured: bool = True) -> Found | None:
        """Read a piece. Returns the stop string it completes, if any; one that is not honoured is passed over."""
        if not self.held and self._first.isdisjoint(piece):
            return None
        for position, character in enumerate(piece):
            stop = self._step(character)
            if stop is not None and honoured:
                return Found(stop, position + 1)
        self.held = max(self._matched)
        return None

    def _step(self, character: str) -> str | None:
        complete = None
        for index, stop in enumerate(self._stops):
            matched, fallback = self._matched[index], self._fallbacks[index]
            while matched and stop[matched] != character:
                matched = fallback[matched - 1]
            matched += stop[matched] == character
            if matched == len(stop):
                complete = complete or stop
                matched = fallback[matched - 1]
            self._matched[index] = matched
        return complete


@lru_cache(maxsize=64)
def _fallbacks(stop: str) -> tuple[int, ...]:
    """For each beginning of `stop`: the length of the longest shorter beginning that it ends with.

    Remembered, since the choices of a request all ask for the same.
    """
    table, matched = [0], 0
    for character in stop[1:]:
        while matched and stop[matched] != character:
            matched = table[matched - 1]
        matched += stop[matched] == character
        table.append(matched)
    return tuple(table)
