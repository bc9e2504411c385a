"""Sequences that wait for a slot: first come, first served, but a preempted one goes back to the head."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

from headrace.scheduler.sequence import Sequence


class WaitingQueue:
    """Every operation takes constant time, removal from the middle included."""

    def __init__(self) -> None:
        self._sequences: OrderedDict[int, Sequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sequences)

    def push(self, sequence: Sequence) -> None:
        self._sequences[sequence.id] = sequence

    def push_front(self, sequence: Sequence) -> None:
        self._sequences[sequence.id] = sequence
        self._sequences.move_to_end(sequence.id, last=False)

    def head(self) -> Sequence:
        return next(iter(self._sequences.values()))

    def first(self, most: int) -> Iterator[Sequence]:
        """The head and those behind it, `most` in all."""
        return islice(self._sequences.values(), most)

    def pop(self) -> Sequence:
        return self._sequences.popitem(last=False)[1]

    def remove(self, sequence: Sequence) -> bool:
        """Take it out; whether it was waiting at all."""
        return self._sequences.pop(sequence.id, None) is not None
