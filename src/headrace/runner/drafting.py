"""Steps of an engine whose rows may carry drafts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.cache.layout import CacheLayout
from headrace.kernels.dispatch import runs_triton
from headrace.layers.batch import Batch, Pools
from headrace.models.decoder import Decoder
from headrace.plan.graph_rows import PromptShape
from headrace.runner.coin import Coin
from headrace.runner.copies import take_in
from headrace.runner.draft_batch import DraftPacker, DraftStep
from headrace.runner.draft_graphs import DraftCaptured, DraftGraphs
from headrace.runner.drafter_rehearsal import rehearse_drafter
from headrace.runner.forward_graphs import Forward, ForwardGraphs, Passed
from headrace.runner.graphs import MemoryCounts
from headrace.runner.page_tables import PageTables
from headrace.runner.progress import begin, draft_slots
from headrace.runner.proposer import Proposer
from headrace.runner.sampler import Sampler
from headrace.runner.verify import DrawnRuns, Logits, Verifier
from headrace.speculate.drafter import DeviceDrafter
from headrace.types import Admission, Request, Row, SamplingParams


class Drafting:
    """Positions, lengths and acceptance are the device's; the host knows which slots may have pending drafts.

    A step in which nothing is drafted and no row can have drafts pending runs as in an engine without drafts. One with prompts
    in which nothing is drafted is made so: what is pending joins the states before it.
    """

    def __init__(
        self, layout: CacheLayout, decoder: Decoder, pools: Pools, tables: PageTables, sampler: Sampler, most_tokens: int,
        device: torch.device, drafter: DeviceDrafter | None = None, acceptance: float | None = None,
    ) -> None:
        """acceptance: a coin's instead of the target's."""
        self._decoder, self._pools, self.tables, self._sampler = decoder, pools, tables, sampler
        self._drafts = layout.drafts
        self.graphs: DraftGraphs | None = None
        self.forwards: ForwardGraphs | None = None
        self.slots = draft_slots(pools, sampler, device)
        self.coin = None if acceptance is None else Coin(sampler.state, acceptance)
        self.proposer = Proposer(drafter, self.slots, tables, sampler, layout.drafts)
        self._verifier = self._verifier_of(decoder.logits)
        self._packer = DraftPacker(tables, self.slots, self.proposer, most_tokens, layout.pool_slots, sum(layout.pages), device)
        self._pends = [False] * layout.slots  # whether drafts of the slot's last row may have been accepted

    @property
    def sent_bytes(self) -> int:
        """Of the numbers that are sent with a step, on the device."""
        return self._packer.nbytes

    def admit(self, admissions: Sequence[Admission]) -> None:
        begin(self.slots, admissions)
        self.proposer.admit(admissions)
        for admission in admissions:
            self._pends[admission.slot] = False

    def sample_as(self, params: SamplingParams) -> None:
        """Every slot's draws, until it is given to a request."""
        slots = range(len(self._pends))
        self._sampler.admit([Admission(slot, slot, Request("", (0,), params, slot, 1)) for slot in slots])

    def rehearse(self, chunk_tokens: int) -> None:
        """Have the drafter's kernels compiled, if there is one; rows have chunk_tokens at most."""
        weight = self._decoder.embedding.weight
        if self.proposer.drafter is not None and runs_triton(weight):
            rehearse_drafter(self.proposer, self._packer, len(self._pends), chunk_tokens, weight.shape[1], weight.dtype)

    def capture(self, sizes: tuple[int, ...], shapes: tuple[PromptShape, ...]) -> None:
        """Capture steps of so many rows as graphs, and the decoder's part of steps with prompts of these shapes."""
        captured, memory = self._verifier_of(self._decoder.scores), torch.cuda.graph_pool_handle()
        forwards = ForwardGraphs(shapes, Forward(self._decoder, self._pools, self.tables, self.proposer.taps, memory))
        self.graphs = DraftGraphs(sizes, self._drafts, DraftCaptured(
            self._decoder, self._pools, self.tables, self.slots, self._sampler, captured, self._verifier,
            self.proposer, memory,
        ))
        self.forwards = forwards

    @property
    def prompts(self) -> tuple[PromptShape, ...]:
        """Of the steps with prompts that are captured; without drafts."""
        return self.forwards.shapes if self.forwards else ()

    @property
    def taken(self) -> MemoryCounts | None:
        """The memory that the graphs took."""
        return self.graphs.taken.and_also(self.forwards.taken) if self.graphs and self.forwards else None

    def run(self, rows: tuple[Row, ...]) -> tuple[DrawnRuns | None, Tensor | None, Tensor | None]:
        """A step of rows that are `short_first`: what they drew, the hidden states of all tokens if any were known, and of each
        row [R] how many drafts the drafter on the device has, if there is one that says so.
        """
        if any(row.tokens for row in rows) and not any(row.draft_count for row in rows):
            self._take_in(rows)
        deferred = any(row.draft_count or self._pends[row.slot] for row in rows)
        graph = self.graphs.graph_for(rows, deferred=deferred) if self.graphs else None
        folds = any(row.tokens and self._pends[row.slot] for row in rows)
        for row in rows:
            self._pends[row.slot] = row.draft_count > 0
        if graph is not None:
            assert self.graphs is not None
            self.graphs.propose(rows)
            self._tell_drafts()
            replayed, proposes = graph.replay(rows)
            return replayed, None, None if self.coin else proposes
        step = self._packer.pack(rows, deferred=deferred, folds=folds)
        self._tell_drafts()
        hidden, taps = self._forward(step.batch, rows)
        self._sampler.await_masks()
        drawn = self._verifier.finish(step, hidden)
        proposes = self._observe(step, taps, hidden) if self.proposer.drafter else None
        return drawn, hidden, None if self.coin else proposes

    def _tell_drafts(self) -> None:
        """Drafts that were made on the device, to whom masks depend on them."""
        if self._sampler.allowed is not None:
            self._sampler.allowed.take(self.proposer.proposed)

    def _verifier_of(self, logits: Logits) -> Verifier:
        drafter = self.proposer.drafter
        odds = self.proposer.odds if drafter is not None and drafter.draws else None
        return Verifier(logits, self._sampler, self.slots, self.coin, odds)

    def _take_in(self, rows: tuple[Row, ...]) -> None:
        """No row has drafts pending after this: the step runs as an engine's without drafts."""
        slots = [row.slot for row in rows if self._pends[row.slot]]
        if slots:
            take_in(self._pools, slots, self.slots.positions.device)
        for slot in slots:
            self._pends[slot] = False

    def _forward(self, batch: Batch, rows: tuple[Row, ...]) -> Passed:
        forward = self.forwards.graph_for(rows) if self.forwards and batch.deferred is None else None
        return forward.run(batch) if forward else self._decoder.tapped(batch, self._pools, self.proposer.taps)

    def _observe(self, step: DraftStep, taps: tuple[Tensor, ...], hidden: Tensor) -> Tensor | None:
        samples = torch.ones(len(step.starts), dtype=torch.bool, device=step.starts.device)
        if step.others is not None:
            samples.index_fill_(0, step.others, False)
        return self.proposer.observe(step.batch, taps, hidden, step.starts, samples)
