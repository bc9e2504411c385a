"""Which rows the running sequences have in a plan."""

from __future__ import annotations

from headrace.scheduler.draft_counts import DraftCounts
from headrace.scheduler.drafter import Drafter
from headrace.scheduler.prefixes import Prefixes
from headrace.scheduler.running import Running
from headrace.scheduler.sequence import Sequence
from headrace.scheduler.step import Step


class Rows:
    """drafter: on the host, if any; how many drafts one on the device is asked for, `drafts` knows."""

    def __init__(self, running: Running, prefixes: Prefixes, drafts: DraftCounts, drafter: Drafter | None) -> None:
        self._running, self._prefixes = running, prefixes
        self._drafts, self._drafter = drafts, drafter

    def decoding(self, step: Step) -> list[Sequence]:
        """Rows of one token and drafts for every decoding sequence. Returns those that still have prompt to compute."""
        prompts = []
        starved = False  # somebody older found no page, and nobody to take one from while all have rows in flight
        youngest = self._running.youngest
        asked = self._drafts.choose(self._running.sequences.values())
        for sequence in list(self._running.sequences.values()):
            if sequence.arrival is not None:
                continue
            if sequence.prefilling:
                prompts.append(sequence)
            elif starved and sequence is youngest:
                continue  # without a row it will be idle, and can give up its pages
            elif sequence.tokens_left > 0 and sequence.holding is not None:  # a row before it may have preempted it
                starved |= not self._token(step, sequence, asked.get(sequence.id, 0))
        return prompts

    def first(self, step: Step, sequence: Sequence) -> None:
        """Of a sequence that begins: a chunk, or where all but its last known token is there, that."""
        if sequence.prefilling:
            self.chunk(step, sequence)
        else:
            self._token(step, sequence)

    def chunk(self, step: Step, sequence: Sequence) -> None:
        """The next chunk of a running sequence's prompt, as long as the step has room for."""
        assert sequence.holding is not None
        end = min(sequence.prefill_end, sequence.planned + step.prompt_tokens_left)
        end = self._prefixes.clip(sequence.holding.lease, sequence.planned, end)
        updates = self._running.room(sequence, end)
        if updates is not None:
            tokens = sequence.known_tokens(sequence.planned, end)
            samples = end == sequence.known and sequence.request.max_tokens > 0
            step.add(sequence, tokens, updates, samples=samples)

    def _token(self, step: Step, sequence: Sequence, asked: int = 0) -> bool:
        """A row of the slot's next token, and of drafts: those that the host proposes, or as many as are asked for. Whether
        there are pages for it.
        """
        drafts = self._propose(sequence)
        count = len(drafts) or asked
        updates = self._running.room(sequence, sequence.room(1 + count), preempting=not count)
        if updates is None and count:
            drafts, count, updates = (), 0, self._running.room(sequence, sequence.room(1))
        if updates is not None:
            wanted = 0 if drafts else count
            step.add(sequence, (), updates, samples=True, drafts=drafts, asked=wanted)
        return updates is not None

    def _propose(self, sequence: Sequence) -> tuple[int, ...]:
        """Drafts for the next row: no more than can be accepted before the last token that may be sampled."""
        if self._drafter is None:
            return ()
        most = min(self._drafter.most, sequence.tokens_left - 1)
        return self._drafter.propose(sequence.request, sequence.output, sequence.unseen, most) if most > 0 else ()
