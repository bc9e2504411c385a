"""Steps of rows with drafts as CUDA graphs, for numbers of rows and of tokens: any lengths and draft counts are a replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.accept_drafts import DraftSlots
from headrace.kernels.row_places import row_places
from headrace.kernels.row_positions import row_positions
from headrace.kernels.slot_lookup import slot_lookup
from headrace.layers.batch import Batch, Deferred, Pools
from headrace.models.decoder import Decoder
from headrace.plan.graph_rows import bucket_of, draft_widths
from headrace.runner.draft_batch import Runs
from headrace.runner.graphs import all_borrowed, borrowed, memory_counts
from headrace.runner.page_tables import PageTables
from headrace.runner.proposal_graphs import ProposalGraph
from headrace.runner.proposer import Proposer
from headrace.runner.sampler import Sampler
from headrace.runner.upload import Span, Upload
from headrace.runner.verify import DrawnRuns, Verifier
from headrace.speculate.costs import StepCosts
from headrace.types import Row

_WARM_UPS = 1
_STEP, _IN_TURN, _TOGETHER, _OBSERVE = "step", "in turn", "together", "observe"


@dataclass(frozen=True, slots=True)
class DraftInputs:
    """What changes from step to step, at fixed places in an upload; R rows of T tokens in all, U page updates at most."""

    slots: Span  # [R] int64
    drafts: Span  # [T] int64, below 0 for those of a drafter on the device; a row's first token is its slot's next input
    draft_of: Span  # [T] int64, see `Runs`
    counts: Span  # [R] int64, of drafts
    offsets: Span  # [R + 1] int32
    updated: Span  # [U] int64, indices of the page tables' entries
    pages: Span  # [U] int64, what they become


@dataclass(frozen=True, slots=True)
class DraftCaptured:
    """What graphs read and write. captured: draws from logits in the model's type. One memory pool serves all graphs."""

    decoder: Decoder
    pools: Pools
    tables: PageTables
    slots: DraftSlots
    sampler: Sampler
    captured: Verifier
    eager: Verifier
    proposer: Proposer
    memory: Any  # torch's handle of the pool


class DraftGraph:
    """A step of `size` rows, `size * width` tokens in all, at most `most` in a row: next inputs of their slots, and drafts.

    Tokens that the rows lack follow their drafts, and count for nothing: nobody looks at what they compute, and their keys and
    values go to the padding page. Rows that a step lacks are padding. With a width of 1 the step is an engine's without drafts.
    Drawing, accepting and moving on is a graph of its own, of two kinds, or left out for rows that the host must help to draw.
    With a drafter on the device what it observes of the step is another, behind that.
    """

    def __init__(self, size: int, width: int, most: int, over: DraftCaptured) -> None:
        self.size, self.tokens, self.most = size, size * width, most if width > 1 else 1
        self._over, self._tables = over, over.tables
        self.most_updates = size * len(over.tables.entries) * -(-self.most // over.tables.page_tokens)
        device = over.sampler.device
        self._upload = Upload(3 * size + 2 * self.tokens + 1 + 2 * self.most_updates, device)
        self._nowhere = over.tables.entries[:, over.tables.padding_slot, 0] * over.tables.page_tokens  # [G]
        certain = torch.ones(size, dtype=torch.int32, device=device)
        self._deferred = Deferred(certain, size, self.tokens, certain[:0].long()) if width > 1 else None
        self._begins: tuple[int, ...] = ()
        self._inputs = self._write(())
        self._upload.send()
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self._made: dict[str, Any] = {}  # what each graph leaves behind, until another step's runs

    def warm_up(self) -> None:
        """Run all that will be captured: kernels are compiled and libraries allocate, which a capture does not allow."""
        for _ in range(_WARM_UPS):
            computed = self._compute()
            for kind in self._kinds:
                self._finish(kind, *computed[:2])
            self._observe(*computed)

    def capture(self) -> None:
        """After this the step can be replayed. What one graph leaves for those behind it lies there until they have run."""
        made = {_STEP: self._captured(_STEP, self._compute)}
        runs, hidden, batch, taps = made[_STEP]
        for kind in self._kinds:
            made[kind] = self._captured(kind, partial(self._finish, kind, runs, hidden))
        if self._over.proposer.drafter is not None:
            proposes = self._captured(_OBSERVE, partial(self._observe, runs, hidden, batch, taps))
            self._made[_OBSERVE] = None if proposes is None else borrowed(proposes)
        self._made |= {kind: all_borrowed(made[kind]) for kind in self._kinds}
        self._made[_STEP] = all_borrowed(runs), borrowed(hidden)

    def _captured(self, kind: str, compute: Callable[[], Any]) -> Any:
        self._graphs[kind] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graphs[kind], pool=self._over.memory):
            return compute()

    def replay(self, rows: tuple[Row, ...]) -> tuple[DrawnRuns, Tensor | None]:
        """Run the step for `rows`, of which there are at most `size`, draw their tokens, and move their slots on; and how many
        drafts there are for each, of a drafter that says so.
        """
        self._write(rows)
        self._upload.send()
        self._run(_STEP)
        self._over.sampler.await_masks()
        drawn = self._drawn(rows)
        if self._over.proposer.drafter is None:
            return drawn, None
        self._run(_OBSERVE)
        proposes: Tensor | None = self._made[_OBSERVE]
        return drawn, None if proposes is None else proposes[: len(rows)]

    def _drawn(self, rows: tuple[Row, ...]) -> DrawnRuns:
        names, sampler = tuple([row.slot for row in rows]), self._over.sampler
        if not self._draws(names):
            runs, hidden = self._made[_STEP]
            return self._over.eager.draw(self._named(runs, names), hidden, deferred=self._deferred is not None)
        kind = _TOGETHER if _TOGETHER in self._kinds and sampler.independent(names) else _IN_TURN
        self._run(kind)
        sampler.note_draw(names)
        drawn: DrawnRuns = self._made[kind]
        begins = self._begins if kind == _TOGETHER else tuple(range(self.size))
        return replace(drawn, emitted=drawn.emitted[: len(rows)], begins=begins[: len(rows)])

    def _draws(self, names: tuple[int, ...]) -> bool:
        """Whether graphs draw for these slots."""
        return self._over.sampler.draws_on_device(names) and not self._over.sampler.reports(names)

    @property
    def _kinds(self) -> tuple[str, ...]:
        return (_IN_TURN, _TOGETHER) if self.most > 1 else (_IN_TURN,)

    def _run(self, kind: str) -> None:
        self._graphs[kind].replay()

    def _write(self, rows: tuple[Row, ...]) -> DraftInputs:
        upload, spare = self._upload, self.size - len(rows)
        counts = [row.draft_count for row in rows] + [0] * spare
        widths = self._widths([1 + count for count in counts])
        offsets = [0, *accumulate(widths)]
        self._begins = tuple(offsets[:-1])
        drafts, draft_of = [0] * self.tokens, [-1] * self.tokens
        for begin, count, row in zip(self._begins, counts, rows, strict=False):
            if count:
                drafts[begin + 1 : begin + 1 + count] = row.drafts or (-1,) * count
                draft_of[begin : begin + row.asked] = range(row.asked)
        indices, pages = self._tables.places((row.slot, update) for row in rows for update in row.page_updates)
        idle = self.most_updates - len(indices)
        upload.begin()
        return DraftInputs(
            slots=upload.add([row.slot for row in rows] + [self._tables.padding_slot] * spare),
            drafts=upload.add(drafts),
            draft_of=upload.add(draft_of),
            counts=upload.add(counts),
            offsets=upload.add(offsets, torch.int32),
            updated=upload.add(indices + [self._tables.padding_entry] * idle),
            pages=upload.add(pages + [self._tables.padding_page] * idle),
        )

    def _widths(self, widths: list[int]) -> list[int]:
        """The same with the tokens that are left."""
        left = self.tokens - sum(widths)
        for row, width in enumerate(widths):
            if not left:
                break
            more = min(left, self.most - width)
            widths[row] += more
            left -= more
        return widths

    def _compute(self) -> tuple[Runs, Tensor, Batch, tuple[Tensor, ...]]:
        """The rows' runs, the hidden states [tokens, hidden] of their tokens, and what else a drafter reads."""
        batch, runs = self._batch()
        hidden, taps = self._over.decoder.tapped(batch, self._over.pools, self._over.proposer.taps)
        return runs, hidden, batch, taps

    def _observe(self, runs: Runs, hidden: Tensor, batch: Batch, taps: tuple[Tensor, ...]) -> Tensor | None:
        proposer = self._over.proposer
        samples = torch.ones(self.size, dtype=torch.bool, device=hidden.device)
        return proposer.observe(batch, taps, hidden, runs.positions, samples) if proposer.drafter else None

    def _finish(self, kind: str, runs: Runs, hidden: Tensor) -> DrawnRuns:
        verifier = self._over.captured
        draw = verifier.draw_together if kind == _TOGETHER else verifier.draw_in_turn
        return draw(runs, hidden, deferred=self._deferred is not None)

    def _batch(self) -> tuple[Batch, Runs]:
        at, inputs, tables, kept = self._upload.tensor, self._inputs, self._tables, self._over.slots
        offsets, counts = at(inputs.offsets), at(inputs.counts)
        where, starts, lengths, positions, owners, written = row_positions(
            at(inputs.slots), offsets, counts, kept.positions, kept.ends, kept.frozen, self.tokens
        )
        newest, found, _ = slot_lookup(
            tables.entries, at(inputs.updated), at(inputs.pages), kept.next_tokens, where, starts, tables.page_tokens
        )
        tokens, places = row_places(
            found, newest, offsets, positions, written, at(inputs.drafts), self._over.proposer.proposed, where, self._nowhere,
            tables.page_tokens,
        )
        batch = Batch(
            tokens=tokens,
            positions=positions,
            row_offsets=offsets,
            slots=where,
            lengths=lengths,
            page_tables=found.unbind(),
            write_at=places.unbind(),
            host_row_tokens=self._row_tokens(),
            deferred=self._deferred,
        )
        first = offsets[:-1]
        return batch, Runs(
            tokens, first, counts, where, starts, first, None, owners, positions + 1, at(inputs.draft_of), (), (), (), self.most
        )

    def _row_tokens(self) -> tuple[int, ...]:
        """Bounds."""
        return (self.most,) * self.size

    def _named(self, runs: Runs, names: tuple[int, ...]) -> Runs:
        """The runs of a step's first rows, by name."""
        count, places = len(names), (*self._begins, self.tokens)[len(names)]
        widths = [end - begin for begin, end in zip(self._begins, (*self._begins[1:], self.tokens), strict=True)]
        place_names = tuple(name for name, width in zip(names, widths, strict=False) for _ in range(width))
        return Runs(
            runs.tokens, runs.last[:count], runs.counts[:count], runs.slots[:count], runs.positions[:count],
            runs.begins[:count], None, runs.place_slots[:places], runs.drawn_at[:places], runs.draft_of, names, place_names,
            self._begins[:count], self.most,
        )


class DraftGraphs:
    """The graphs of all sizes and widths. taken: the memory that they took."""

    def __init__(self, sizes: tuple[int, ...], drafts: int, over: DraftCaptured) -> None:
        self._sizes, self._widths, self._proposer = sizes, draft_widths(drafts), over.proposer
        self._faster: dict[tuple[int, int], int] = {}
        shapes = [(size, width) for width in reversed((1, *self._widths)) for size in reversed(sizes)]
        self._graphs = {(size, width): DraftGraph(size, width, 1 + drafts, over) for size, width in shapes}
        proposer = self._proposer
        self._proposals = {
            (size, depth): ProposalGraph(size, depth, proposer, over.slots, over.tables)
            for size in reversed(sizes) for depth in (reversed(proposer.drafter.depths) if proposer.drafter else ())
        }
        for graph in self._graphs.values():
            graph.warm_up()
        for proposal in self._proposals.values():
            proposal.warm_up()
        before = memory_counts()
        for graph in self._graphs.values():  # the largest first: the smaller ones fit into its memory
            graph.capture()
        for proposal in self._proposals.values():
            proposal.capture(over.memory)
        self.taken = memory_counts().beyond(before)

    def prefer(self, costs: StepCosts) -> None:
        """Steps with drafts run as the fastest that they fit into from now on."""
        self._faster = {(size, w): costs.count(size, size * (w - 1)) // size for size in self._sizes for w in self._widths}

    @property
    def all(self) -> tuple[DraftGraph, ...]:
        """Every graph of a step."""
        return tuple(self._graphs.values())

    def propose(self, rows: tuple[Row, ...]) -> None:
        """For rows that have a graph: what they are asked for."""
        if most := max(row.asked for row in rows):
            size = bucket_of(len(rows), self._sizes)
            assert size is not None
            self._proposals[size, self._proposer.depth(most)].propose(rows)

    def graph_for(self, rows: tuple[Row, ...], *, deferred: bool) -> DraftGraph | None:
        """The graph that runs these rows; None if one has known tokens or draws none, or there is no graph so large.

        deferred: whether one of them has drafts, or may have some that are pending.
        """
        size = bucket_of(len(rows), self._sizes)
        if size is None or any(row.tokens or not row.samples for row in rows):
            return None
        tokens = size + sum(row.draft_count for row in rows)
        width = next(width for width in self._widths if size * width >= tokens) if deferred else 1
        graph = self._graphs[size, self._faster.get((size, width), width)]
        updates = sum(len(update.pages) for row in rows for update in row.page_updates)
        return graph if updates <= graph.most_updates else None
