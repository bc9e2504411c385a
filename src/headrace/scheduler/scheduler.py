"""Decides what every step computes, and is the one place where tokens enter a sequence.

plan() decides, commit() applies what came of it; plan() may be called again before the commit (an overlapped loop), then with
the last sampled tokens known to the device alone. Neither does work that grows with the number of waiting requests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from headrace.cache.layout import CacheLayout
from headrace.cache.prefix.settings import PrefixSettings
from headrace.cache.slots import SlotPool
from headrace.scheduler.draft_counts import DraftCounts
from headrace.scheduler.drafter import Drafter
from headrace.scheduler.host_tier import HostMemory
from headrace.scheduler.prefixes import Lookup, Prefixes
from headrace.scheduler.queue import WaitingQueue
from headrace.scheduler.sequence import Holding, Sequence
from headrace.scheduler.ssd_tier import Read, SsdSettings
from headrace.speculate.pace import Pace
from headrace.types import (
    Admission,
    EngineStats,
    FinishReason,
    PageCopy,
    PageUpdate,
    Request,
    Row,
    RowResult,
    StepPlan,
    StepResult,
    TokenEvent,
    TokenLogprob,
)

_LOOKED_AT = 16
"""So many waiting sequences are compared with one that begins."""


@dataclass(slots=True)
class _Step:
    """A plan in the making."""

    prompt_tokens_left: int
    admissions: list[Admission]
    rows: list[Row]
    sequences: list[Sequence]
    page_copies: list[PageCopy]


class Scheduler:
    """Continuous batching with chunked prefill over a fixed cache.

    A step computes one token of every decoding sequence, with the drafts that a drafter proposes behind it, and prompts, oldest
    first, in what that leaves of `chunk_tokens`, but in half of them at least: kernels take chunk_tokens in whole tiles, and a
    few more would cost another row of tiles. When pages run out the youngest running sequence gives up its own and is computed
    again later; drafts alone are left out for want of pages.

    prefixes: with them, what sequences computed is kept in the pages that nobody else needs, for those that begin alike.
    memory: who copies to and from host memory beside the steps; ssd: what is behind it. pace: how many drafts rows have of a
    drafter on the device; `drafter` is one on the host.
    """

    def __init__(
        self, layout: CacheLayout, *, chunk_tokens: int, drafter: Drafter | None = None, prefixes: PrefixSettings | None = None,
        memory: HostMemory | None = None, ssd: SsdSettings | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._drafter, self._verifies = drafter, layout.drafts > 0
        self._drafts = DraftCounts(layout.drafts, pace)
        self._slots = SlotPool(layout.slots)
        self._prefixes = Prefixes(layout, prefixes, memory, ssd)
        self._chunk_tokens = chunk_tokens
        self._waiting = WaitingQueue()
        self._reading: dict[int, Sequence] = {}  # by id, in their order: they wait for what is on SSD
        self._running: dict[int, Sequence] = {}  # by id, oldest admission first
        self._by_request: dict[str, Sequence] = {}
        self._flight: deque[tuple[StepPlan, list[Sequence]]] = deque()
        self._events: list[TokenEvent] = []
        self._next_id = 0
        self._steps = 0
        self._preemptions = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generation_tokens = 0

    # Requests

    def add(self, request: Request) -> None:
        """Queue a request. Its prompt and max_tokens are within the context, which the layout can hold."""
        if request.id in self._by_request:
            raise ValueError(f"request id {request.id!r} is in use")
        sequence = Sequence(self._next_id, request)
        self._next_id += 1
        self._by_request[request.id] = sequence
        self._waiting.push(sequence)

    def cancel(self, request_id: str) -> None:
        """End a request now; what it holds is free at once, or when its last uncommitted row is. Unknown ids are ignored."""
        sequence = self._by_request.get(request_id)
        if sequence is not None:
            self._waiting.remove(sequence)
            self._reading.pop(sequence.id, None)
            self._finish(sequence, "cancelled")

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting or self._reading)

    @property
    def outlived(self) -> bool:
        """Whether something outlives the engine: before `close` it is to be given the plans that there are."""
        return self._prefixes.outlived

    def wait(self, seconds: float) -> bool:
        """Where nothing can be planned: wait so long for what is being read, at most; whether there is any."""
        return self._prefixes.wait(seconds)

    def close(self) -> None:
        """No more is planned. What outlives the engine is written."""
        self._prefixes.end()

    def drain_events(self) -> list[TokenEvent]:
        """Events that no commit will return, such as cancellations."""
        events, self._events = self._events, []
        return events

    def stats(self) -> EngineStats:
        slots, prefixes = self._slots, self._prefixes
        checkpoints_used, checkpoints_total, checkpoint_bytes = prefixes.checkpoints
        host_pages_bytes, host_checkpoint_bytes = prefixes.host_bytes
        ssd = prefixes.ssd
        return EngineStats(
            steps=self._steps,
            requests_running=len(self._running),
            requests_waiting=len(self._waiting) + len(self._reading),
            preemptions_total=self._preemptions,
            kv_pages_used=prefixes.pages_used,
            kv_pages_total=prefixes.pages_total,
            slots_used=slots.total - slots.free,
            slots_total=slots.total,
            prompt_tokens_total=self._prompt_tokens,
            generation_tokens_total=self._generation_tokens,
            cached_tokens_total=self._cached_tokens,
            kv_pages_cached=sum(prefixes.pages_cached),
            kv_cached_bytes=prefixes.cached_bytes,
            checkpoints_used=checkpoints_used,
            checkpoints_total=checkpoints_total,
            checkpoint_bytes=checkpoint_bytes,
            host_pages_bytes=host_pages_bytes,
            host_checkpoint_bytes=host_checkpoint_bytes,
            restores_total=prefixes.restores,
            prefix_hits_total=prefixes.hits.total,
            prefix_misses=tuple((miss.name.lower(), count) for miss, count in prefixes.hits.misses.items()),
            prefix_short=tuple((miss.name.lower(), count) for miss, count in prefixes.hits.short.items()),
            restore_times=prefixes.restore_times,
            ssd_bytes=ssd.total_bytes if ssd else 0,
            ssd_waiting=prefixes.ssd_waiting,
            ssd_hits_total=prefixes.hits.ssd,
            ssd_misses=tuple(ssd.misses.items()) if ssd else (),
            ssd_dropped=tuple(ssd.dropped.items()) if ssd else (),
            ssd_read_bytes_total=ssd.read_bytes if ssd else 0,
            ssd_written_bytes_total=ssd.written_bytes if ssd else 0,
            drafted=tuple(self._drafts.made),
            accepted=tuple(self._drafts.kept),
            draft_tokens_chosen=self._drafts.chosen,
            draft_gain=self._drafts.gain,
        )

    # Planning

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing can be computed before a commit or a new request."""
        self._prefixes.begin_plan()
        self._queue_again()
        step = _Step(self._chunk_tokens, [], [], [], [])
        prompts = self._plan_decoding(step)
        step.prompt_tokens_left -= min(sum(1 + row.draft_count for row in step.rows), self._chunk_tokens // 2)
        for sequence in prompts:
            if step.prompt_tokens_left > 0 and sequence.id in self._running:
                self._plan_chunk(step, sequence)
        self._admit_arrived(step, waits=False)
        self._admit(step)
        if not step.rows:
            self._admit_arrived(step, waits=True)
        if not step.rows and not self._copies_alone:
            return None
        copies, states, host = tuple(step.page_copies), self._prefixes.take_copies(), self._prefixes.take_host_copies()
        plan = StepPlan(self._steps, tuple(step.admissions), tuple(step.rows), copies, states, host)
        self._steps += 1
        self._flight.append((plan, step.sequences))
        for row, sequence in zip(step.rows, step.sequences, strict=True):
            if row.tokens:
                self._prefixes.planned(sequence, row.tokens)
        return plan

    @property
    def _copies_alone(self) -> bool:
        """Whether a plan is made for copies alone: nobody else will make one for them."""
        return self._prefixes.copies_due and not self._running and not self._flight

    def _queue_again(self) -> None:
        """Those that have waited for the SSD go on waiting for their turn, before all others."""
        for sequence in reversed([each for each in self._reading.values() if each.read is None or each.read.over]):
            del self._reading[sequence.id]
            self._waiting.push_front(sequence)

    def _plan_decoding(self, step: _Step) -> list[Sequence]:
        """Rows of one token and drafts for every decoding sequence. Returns those that still have prompt to compute."""
        prompts = []
        starved = False  # somebody older found no page, and nobody to take one from while all have rows in flight
        youngest = next(reversed(self._running.values()), None)
        asked = self._drafts.choose(self._running.values())
        for sequence in list(self._running.values()):
            if sequence.arrival is not None:
                continue
            if sequence.prefilling:
                prompts.append(sequence)
            elif starved and sequence is youngest:
                continue  # without a row it will be idle, and can give up its pages
            elif sequence.tokens_left > 0 and sequence.holding is not None:  # a row before it may have preempted it
                starved |= not self._plan_token(step, sequence, asked.get(sequence.id, 0))
        return prompts

    def _plan_token(self, step: _Step, sequence: Sequence, asked: int = 0) -> bool:
        """A row of the slot's next token, and of drafts: those that the host proposes, or as many as are asked for. Whether
        there are pages for it.
        """
        drafts = self._propose(sequence)
        count = len(drafts) or asked
        updates = self._room(sequence, sequence.room(1 + count), preempting=not count)
        if updates is None and count:
            drafts, count, updates = (), 0, self._room(sequence, sequence.room(1))
        if updates is not None:
            wanted = 0 if drafts else count
            self._add_row(step, sequence, (), updates, samples=True, drafts=drafts, asked=wanted)
        return updates is not None

    def _propose(self, sequence: Sequence) -> tuple[int, ...]:
        """Drafts for the next row: no more than can be accepted before the last token that may be sampled."""
        if self._drafter is None:
            return ()
        most = min(self._drafter.most, sequence.tokens_left - 1)
        return self._drafter.propose(sequence.request, sequence.output, sequence.unseen, most) if most > 0 else ()

    def _plan_chunk(self, step: _Step, sequence: Sequence) -> None:
        """The next chunk of a running sequence's prompt, as long as the step has room for."""
        assert sequence.holding is not None
        end = min(sequence.prefill_end, sequence.planned + step.prompt_tokens_left)
        end = self._prefixes.clip(sequence.holding.lease, sequence.planned, end)
        updates = self._room(sequence, end)
        if updates is not None:
            tokens = sequence.known_tokens(sequence.planned, end)
            samples = end == sequence.known and sequence.request.max_tokens > 0
            self._add_row(step, sequence, tokens, updates, samples=samples)

    def _add_row(
        self, step: _Step, sequence: Sequence, tokens: tuple[int, ...], updates: tuple[PageUpdate, ...], *, samples: bool,
        drafts: tuple[int, ...] = (), asked: int = 0,
    ) -> None:
        assert sequence.holding is not None
        row = Row(sequence.id, sequence.holding.slot, sequence.planned, tokens, drafts, updates, samples, asked)
        step.rows.append(row)
        step.sequences.append(sequence)
        step.prompt_tokens_left -= len(tokens)
        sequence.planned += len(tokens) or 1
        sequence.drafted += row.draft_count
        sequence.in_flight += 1
        sequence.unseen += samples

    def _room(self, sequence: Sequence, tokens: int, *, preempting: bool = True) -> tuple[PageUpdate, ...] | None:
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
        return next((s for s in reversed(self._running.values()) if s.in_flight == 0), None)

    def _preempt(self, sequence: Sequence) -> None:
        del self._running[sequence.id]
        self._release(sequence)
        self._preemptions += 1
        self._waiting.push_front(sequence)

    def _admit(self, step: _Step) -> None:
        """Waiting sequences, in order, while there are slots, tokens in this step, and pages for their whole prompts."""
        while self._waiting and step.prompt_tokens_left > 0 and self._slots.free:
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
                self._plan_first(step, sequence)

    def _plan_first(self, step: _Step, sequence: Sequence) -> None:
        if sequence.prefilling:
            self._plan_chunk(step, sequence)
        else:
            self._plan_token(step, sequence)

    def _begin(self, step: _Step, sequence: Sequence, found: Lookup) -> None:
        """Give a sequence a slot, and the pages with what is cached of it. Where that comes from host memory and others have
        rows, it begins in a later plan.
        """
        slot = self._slots.allocate()
        start = self._prefixes.open(sequence, found, slot, self._waiting.first(_LOOKED_AT))
        sequence.holding = Holding(slot, start.lease)
        early = sequence.request.max_tokens > 0 and self._prefixes.ends_early(start.lease, sequence.known, start.tokens)
        sequence.planned, sequence.drafted, sequence.prefill_end = start.tokens, 0, sequence.known - early
        if sequence.cached_tokens is None:
            sequence.cached_tokens = start.tokens
        self._running[sequence.id] = sequence
        self._drafts.begin(sequence)
        step.page_copies += start.copies
        sequence.arrival = Admission(
            sequence.id, slot, sequence.request, tuple(sequence.output), start.tokens, self._prefixes.first_pages(start.lease),
            start.checkpoint, self._steps if start.from_host else None,
        )
        if not (start.from_host and step.rows and self._prefixes.may_arrive_later()):
            self._admit_now(step, sequence)

    def _admit_now(self, step: _Step, sequence: Sequence) -> None:
        """Its rows begin in this plan."""
        assert sequence.arrival is not None
        step.admissions.append(sequence.arrival)
        if sequence.arrival.restored is not None:
            self._prefixes.arrived(sequence)
        sequence.arrival = None

    def _admit_arrived(self, step: _Step, *, waits: bool) -> None:
        """Those for which everything has come from host memory; or, where nobody has rows, others too, for which the device
        waits. They have pages for all that is known of them, so their rows are sure.
        """
        for sequence in list(self._running.values()):
            if sequence.arrival is None or step.prompt_tokens_left <= 0:
                continue
            if waits or self._prefixes.landed(sequence.arrival.restored or 0):
                self._admit_now(step, sequence)
                self._plan_first(step, sequence)

    # Committing

    def commit(self, result: StepResult) -> list[TokenEvent]:
        """Apply the oldest uncommitted plan's result: append tokens, end messages, free what ended. Returns the news."""
        plan, sequences = self._flight.popleft()
        if result.step != plan.step or len(result.rows) != len(plan.rows):
            raise ValueError(f"result of step {result.step} does not belong to plan {plan.step}")
        for row, row_result, sequence in zip(plan.rows, result.rows, sequences, strict=True):
            sequence.in_flight -= 1
            sequence.unseen -= row.samples
            sequence.drafted -= row.draft_count
            if sequence.frozen:
                sequence.planned -= 1
            else:
                sequence.planned += len(row_result.tokens) - row.samples
            if sequence.done:
                self._drop_row(row_result, sequence)
            else:
                self._drafts.note(row, row_result, sequence)
                self._commit_row(row, row_result, sequence)
                if not row.tokens and sequence.holding is not None:
                    self._prefixes.committed(sequence, sequence.planned - sequence.in_flight)
        self._drafts.observe()
        if not self._running and not self._flight:
            self._prefixes.idle()
        self._prefixes.make_room()
        return self.drain_events()

    def _drop_row(self, result: RowResult, sequence: Sequence) -> None:
        """What comes of a row that was in flight when its message ended is nobody's, but for the cache."""
        if not sequence.frozen:
            sequence.output.extend(result.tokens)
            self._freeze(sequence, result.tokens)
        if sequence.in_flight == 0:
            self._release(sequence)

    def _freeze(self, sequence: Sequence, tokens: tuple[int, ...]) -> None:
        """Note whether tokens, the last of its output, have ended a message where the device sees that, and stops."""
        request = sequence.request
        ends = (*request.eos_ids, *request.params.stop_token_ids)
        ended = len(sequence.output) >= request.max_tokens or any(token in ends for token in tokens)
        sequence.frozen = self._verifies and ended

    def _commit_row(self, row: Row, result: RowResult, sequence: Sequence) -> None:
        if result.prompt_logprobs:
            self._keep_prompt_logprobs(sequence, row.start, result)
        if not row.samples:
            if not sequence.prefilling and sequence.in_flight == 0 and sequence.request.max_tokens == 0:
                self._count_prompt(sequence)
                self._emit(sequence, (), result, "length", None)
            return
        if not sequence.prompt_counted:
            self._count_prompt(sequence)
        tokens, reason, stopped_by = self._accept(sequence, result.tokens)
        sequence.frozen = self._verifies and reason is not None
        self._emit(sequence, tokens, result, reason, stopped_by)

    def _accept(
        self, sequence: Sequence, tokens: tuple[int, ...]
    ) -> tuple[tuple[int, ...], FinishReason | None, int | None]:
        """Append tokens up to the message's end. Returns those appended, why it ended, and the stop token id if one did."""
        request = sequence.request
        output, stop_ids = sequence.output, request.params.stop_token_ids
        for count, token in enumerate(tokens, 1):
            output.append(token)
            self._generation_tokens += 1
            if token in request.eos_ids:
                return tokens[:count], "stop", None
            if token in stop_ids:
                return tokens[:count], "stop", token
            if len(output) >= request.max_tokens:
                return tokens[:count], "length", None
        return tokens, None, None

    def _emit(
        self,
        sequence: Sequence,
        tokens: tuple[int, ...],
        result: RowResult,
        reason: FinishReason | None,
        stopped_by: int | None,
    ) -> None:
        prompt_logprobs: tuple[TokenLogprob, ...] = ()
        if sequence.prompt_logprobs and len(sequence.output) == len(tokens):  # the first news of this request
            prompt_logprobs, sequence.prompt_logprobs = tuple(sequence.prompt_logprobs), []
        event = TokenEvent(
            sequence.request.id, tokens, result.logprobs[: len(tokens)], prompt_logprobs, sequence.cached_tokens or 0, reason,
            stopped_by, drafted_tokens=sequence.drafts_made, accepted_tokens=sequence.drafts_kept,
        )
        self._events.append(event)
        if reason is not None:
            self._forget(sequence)

    def _keep_prompt_logprobs(self, sequence: Sequence, start: int, result: RowResult) -> None:
        """Entries for positions start + 1 ...; a chunk computed again after a preemption replaces its earlier entries."""
        if not sequence.output:
            del sequence.prompt_logprobs[start:]
            sequence.prompt_logprobs.extend(result.prompt_logprobs)

    def _count_prompt(self, sequence: Sequence) -> None:
        sequence.prompt_counted = True
        self._prompt_tokens += len(sequence.request.prompt)
        self._cached_tokens += sequence.cached_tokens or 0

    # Ending

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a request from outside a commit."""
        self._events.append(TokenEvent(sequence.request.id, finish_reason=reason))
        self._forget(sequence)
        if not self._running and not self._flight:
            self._prefixes.idle()

    def _forget(self, sequence: Sequence) -> None:
        del self._by_request[sequence.request.id]
        self._running.pop(sequence.id, None)
        sequence.done = True
        if sequence.in_flight == 0:
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        if sequence.holding is not None:
            self._prefixes.close(sequence)
            self._slots.release(sequence.holding.slot)
            sequence.holding = sequence.arrival = None
