"""Sequences that have a slot and pages, and who gives them up when there are no more."""

from __future__ import annotations

from headrace.cache.slots import SlotPool
from headrace.scheduler.prefixes import Prefixes
from headrace.scheduler.queue import WaitingQueue
from headrace.scheduler.sequence import Sequence
from headrace.types import PageUpdate


class Running:
    """sequences: by id, oldest admission first. Preempted ones go to the head of `waiting`."""

    def __init__(self, slots: int, prefixes: Prefixes, waiting: WaitingQueue) -> None:
        self.sequences: dict[int, Sequence] = {}
        self.slots = SlotPool(slots)
        self.preemptions = 0
        self._prefixes = prefixes
        self._waiting = waiting

    def __len__(self) -> int:
        return len(self.sequences)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.id in self.sequences

    @property
    def youngest(self) -> Sequence | None:
        return next(reversed(self.sequences.values()), None)

    def room(self, sequence: Sequence, tokens: int, *, preempting: bool = True) -> tuple[PageUpdate, ...] | None:
        """Pages for the sequence's first `tokens` tokens, preempting younger sequences for them, itself at the last."""
        assert sequence.holding is not None
        lease = sequence.holding.lease
        while (updates := self._prefixes.extend(lease, sequence.planned, tokens, sequence.prefill_end)) is None:
            victim = self._youngest_idle() if preempting else None
            if victim is None:
                return None
            self._preempt(victim)
            if victim is sequence:
                return None
        return updates

    def _youngest_idle(self) -> Sequence | None:
        """The last admitted sequence without uncommitted rows: only such a one can give up its pages now."""
        return next((s for s in reversed(self.sequences.values()) if s.in_flight == 0), None)

    def _preempt(self, sequence: Sequence) -> None:
        del self.sequences[sequence.id]
        self.release(sequence)
        self.preemptions += 1
        self._waiting.push_front(sequence)

    def end(self, sequence: Sequence) -> None:
        """Its message is over: what it holds is free now, or when its last uncommitted row is committed."""
        self.sequences.pop(sequence.id, None)
        sequence.done = True
        if sequence.in_flight == 0:
            self.release(sequence)

    def release(self, sequence: Sequence) -> None:
        """What it holds, if anything, is free."""
        if sequence.holding is not None:
            self._prefixes.close(sequence)
            self.slots.release(sequence.holding.slot)
            sequence.holding = sequence.arrival = None
