"""Decides what every step computes, and is where what came of it enters the sequences.

plan() decides, commit() applies what came of it; plan() may be called again before the commit (an overlapped loop), then with
the last sampled tokens known to the device alone. Neither does work that grows with the number of waiting requests.
"""

from __future__ import annotations

from collections import deque

from headrace.cache.layout import CacheLayout
from headrace.cache.prefix.settings import PrefixSettings
from headrace.plan.graph_rows import PromptShape
from headrace.scheduler.admissions import Admissions
from headrace.scheduler.draft_counts import DraftCounts
from headrace.scheduler.drafter import Drafter
from headrace.scheduler.host_tier import HostMemory
from headrace.scheduler.news import News
from headrace.scheduler.prefixes import Prefixes
from headrace.scheduler.queue import WaitingQueue
from headrace.scheduler.rows import Rows
from headrace.scheduler.running import Running
from headrace.scheduler.sequence import Sequence
from headrace.scheduler.ssd_tier import SsdSettings
from headrace.scheduler.stats import with_cache
from headrace.scheduler.step import Step
from headrace.speculate.pace import Pace
from headrace.types import EngineStats, Request, Row, RowResult, StepPlan, StepResult, TokenEvent


class Scheduler:
    """Continuous batching with chunked prefill over a fixed cache.

    A step computes one token of every decoding sequence, with the drafts that a drafter proposes behind it, and prompts, oldest
    first, in what that leaves of `chunk_tokens`, but in half of them at least: kernels take chunk_tokens in whole tiles, and a
    few more would cost another row of tiles. When pages run out the youngest running sequence gives up its own and is computed
    again later; drafts alone are left out for want of pages.

    prefixes: with them, what sequences computed is kept in the pages that nobody else needs, for those that begin alike.
    memory: who copies to and from host memory beside the steps; ssd: what is behind it. pace: how many drafts rows have of a
    drafter on the device; `drafter` is one on the host. prompts: steps with prompts that are captured without drafts.
    """

    def __init__(
        self, layout: CacheLayout, *, chunk_tokens: int, drafter: Drafter | None = None, prefixes: PrefixSettings | None = None,
        memory: HostMemory | None = None, ssd: SsdSettings | None = None,
        pace: Pace | None = None, prompts: tuple[PromptShape, ...] = (),
    ) -> None:
        self._prefixes = Prefixes(layout, prefixes, memory, ssd)
        self._drafts = DraftCounts(layout.drafts, pace, prompts)
        self._waiting = WaitingQueue()
        self._running = Running(layout.slots, self._prefixes, self._waiting)
        self._rows = Rows(self._running, self._prefixes, self._drafts, drafter)
        self._admissions = Admissions(self._waiting, self._running, self._prefixes, self._drafts, self._rows)
        self._news = News(verifies=layout.drafts > 0)
        self._chunk_tokens = chunk_tokens
        self._by_request: dict[str, Sequence] = {}
        self._flight: deque[tuple[StepPlan, list[Sequence]]] = deque()
        self._next_id = 0
        self._steps = 0

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
            self._admissions.remove(sequence)
            self._news.ended(sequence, "cancelled")
            self._forget(sequence)
            self._rest()

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._admissions)

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
        return self._news.drain()

    def stats(self) -> EngineStats:
        slots, drafts, news = self._running.slots, self._drafts, self._news
        stats = EngineStats(
            steps=self._steps,
            requests_running=len(self._running),
            requests_waiting=len(self._admissions),
            preemptions_total=self._running.preemptions,
            slots_used=slots.total - slots.free,
            slots_total=slots.total,
            prompt_tokens_total=news.prompt_tokens,
            generation_tokens_total=news.generation_tokens,
            cached_tokens_total=news.cached_tokens,
            drafted=drafts.made,
            accepted=drafts.kept,
            draft_tokens_chosen=drafts.chosen,
            draft_gain=drafts.gain,
            draft_break_even=drafts.break_even,
        )
        return with_cache(stats, self._prefixes)

    # Planning

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing can be computed before a commit or a new request."""
        self._prefixes.begin_plan()
        self._admissions.queue_again()
        step = Step(self._steps, self._chunk_tokens)
        self._fill(step)
        self._drafts.settle(step.rows, step.sequences)
        if not step.rows and not self._copies_alone:
            return None
        copies, states, host = tuple(step.page_copies), self._prefixes.take_copies(), self._prefixes.take_host_copies()
        plan = StepPlan(step.number, tuple(step.admissions), tuple(step.rows), copies, states, host)
        self._steps += 1
        self._flight.append((plan, step.sequences))
        for row, sequence in zip(step.rows, step.sequences, strict=True):
            if row.tokens:
                self._prefixes.planned(sequence, row.tokens)
        return plan

    def _fill(self, step: Step) -> None:
        """Rows of those that decode, then of prompts that have begun, and then of those that begin."""
        prompts = self._rows.decoding(step)
        step.prompt_tokens_left -= min(step.tokens, self._chunk_tokens // 2)
        for sequence in prompts:
            if step.prompt_tokens_left > 0 and sequence in self._running:
                self._rows.chunk(step, sequence)
        self._admissions.admit_arrived(step, waits=False)
        self._admissions.admit(step)
        if not step.rows:
            self._admissions.admit_arrived(step, waits=True)

    @property
    def _copies_alone(self) -> bool:
        """Whether a plan is made for copies alone: nobody else will make one for them."""
        return self._prefixes.copies_due and not self._running and not self._flight

    # Committing

    def commit(self, result: StepResult) -> list[TokenEvent]:
        """Apply the oldest uncommitted plan's result: append tokens, end messages, free what ended. Returns the news."""
        plan, sequences = self._flight.popleft()
        if result.step != plan.step or len(result.rows) != len(plan.rows):
            raise ValueError(f"result of step {result.step} does not belong to plan {plan.step}")
        for row, row_result, sequence in zip(plan.rows, result.rows, sequences, strict=True):
            self._commit_row(row, row_result, sequence)
        if plan.rows:
            self._drafts.observe(result.waited_s)
        self._rest()
        self._prefixes.make_room()
        return self.drain_events()

    def _commit_row(self, row: Row, result: RowResult, sequence: Sequence) -> None:
        sequence.in_flight -= 1
        sequence.unseen -= row.samples
        sequence.drafted -= row.draft_count
        if sequence.frozen:
            sequence.planned -= 1
        else:
            sequence.planned += len(result.tokens) - row.samples
        if sequence.done:
            self._news.append_unheard(result, sequence)
            if sequence.in_flight == 0:
                self._running.release(sequence)
            return
        if result.error is not None:
            self._news.append_unheard(result, sequence)
            self._news.ended(sequence, "error", result.error)
            self._forget(sequence)
            return
        self._drafts.note(row, result, sequence)
        if self._news.append(row, result, sequence):
            self._forget(sequence)
        if not row.tokens and sequence.holding is not None:
            self._prefixes.committed(sequence, sequence.planned - sequence.in_flight)

    def _forget(self, sequence: Sequence) -> None:
        del self._by_request[sequence.request.id]
        self._running.end(sequence)

    def _rest(self) -> None:
        if not self._running and not self._flight:
            self._prefixes.idle()
