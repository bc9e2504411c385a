"""How sequences get a slot: those that wait, those that wait for the SSD, and those that come from host memory."""

from __future__ import annotations

from headrace.scheduler.draft_counts import DraftCounts
from headrace.scheduler.prefixes import Lookup, Prefixes
from headrace.scheduler.queue import WaitingQueue
from headrace.scheduler.rows import Rows
from headrace.scheduler.running import Running
from headrace.scheduler.sequence import Holding, Sequence
from headrace.scheduler.ssd_tier import Read
from headrace.scheduler.step import Step
from headrace.types import Admission

_LOOKED_AT = 16
"""So many waiting sequences are compared with one that begins."""


class Admissions:
    """waiting: in their order. Those that wait for what is on SSD are set aside, others go on."""

    def __init__(
        self, waiting: WaitingQueue, running: Running, prefixes: Prefixes, drafts: DraftCounts, rows: Rows
    ) -> None:
        self._waiting, self._running = waiting, running
        self._prefixes, self._drafts, self._rows = prefixes, drafts, rows
        self._reading: dict[int, Sequence] = {}  # by id, in their order: they wait for what is on SSD

    def __len__(self) -> int:
        """Sequences that wait."""
        return len(self._waiting) + len(self._reading)

    def remove(self, sequence: Sequence) -> None:
        """It waits no more, if it did."""
        self._waiting.remove(sequence)
        self._reading.pop(sequence.id, None)

    def queue_again(self) -> None:
        """Those that have waited for the SSD go on waiting for their turn, before all others."""
        for sequence in reversed([each for each in self._reading.values() if each.read is None or each.read.over]):
            del self._reading[sequence.id]
            self._waiting.push_front(sequence)

    def admit(self, step: Step) -> None:
        """Waiting sequences, in order, while there are slots, tokens in this step, and pages for their whole prompts."""
        while self._waiting and step.prompt_tokens_left > 0 and self._running.slots.free:
            sequence = self._waiting.head()
            found = self._prefixes.look_up(sequence)
            if found is None:
                return
            if isinstance(found, Read):  # others go on
                self._reading[sequence.id] = self._waiting.pop()
                continue
            first_chunk = min(sequence.known, found.tokens + step.prompt_tokens_left)
            # One page for each running sequence stays free, or the newcomer would be preempted as soon as they grow.
            if not self._prefixes.has_room(found, first_chunk, sequence.known, headroom_pages=len(self._running)):
                if self._prefixes.release():
                    continue  # pages of what was found may be among them: nobody reads them now
                return
            self._waiting.pop()
            self._begin(step, sequence, found)
            if sequence.arrival is None:
                self._rows.first(step, sequence)

    def _begin(self, step: Step, sequence: Sequence, found: Lookup) -> None:
        """Give a sequence a slot, and the pages with what is cached of it. Where that comes from host memory and others have
        rows, it begins in a later plan.
        """
        slot = self._running.slots.allocate()
        start = self._prefixes.open(sequence, found, slot, self._waiting.first(_LOOKED_AT))
        sequence.holding = Holding(slot, start.lease)
        early = sequence.request.max_tokens > 0 and self._prefixes.ends_early(start.lease, sequence.known, start.tokens)
        sequence.planned, sequence.drafted, sequence.prefill_end = start.tokens, 0, sequence.known - early
        if sequence.cached_tokens is None:
            sequence.cached_tokens = start.tokens
        self._running.sequences[sequence.id] = sequence
        self._drafts.begin(sequence)
        step.page_copies += start.copies
        sequence.arrival = Admission(
            sequence.id, slot, sequence.request, tuple(sequence.output), start.tokens, self._prefixes.first_pages(start.lease),
            start.checkpoint, step.number if start.from_host else None,
        )
        if not (start.from_host and step.rows and self._prefixes.may_arrive_later()):
            self._now(step, sequence)

    def _now(self, step: Step, sequence: Sequence) -> None:
        """Its rows begin in this plan."""
        assert sequence.arrival is not None
        step.admissions.append(sequence.arrival)
        if sequence.arrival.restored is not None:
            self._prefixes.arrived(sequence)
        sequence.arrival = None

    def admit_arrived(self, step: Step, *, waits: bool) -> None:
        """Those for which everything has come from host memory; or, where nobody has rows, others too, for which the device
        waits. They have pages for all that is known of them, so their rows are sure.
        """
        for sequence in list(self._running.sequences.values()):
            if sequence.arrival is None or step.prompt_tokens_left <= 0:
                continue
            if waits or self._prefixes.landed(sequence.arrival.restored or 0):
                self._now(step, sequence)
                self._rows.first(step, sequence)
