"""Between the steps and a drafter on the device: what it proposes is kept by slot, from where steps take it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.kernels.accept_drafts import DraftSlots
from headrace.kernels.sample import Odds
from headrace.layers.batch import Batch
from headrace.runner.draft_draw import DraftDraw
from headrace.runner.page_tables import PageTables
from headrace.runner.sampler import Sampler
from headrace.speculate.drafter import Asked, DeviceDrafter, Seen
from headrace.types import Admission


class Proposer:
    """proposed [slots, K] int64: the newest drafts of every slot, of `drafter`; zeros without one. odds: what they were drawn
    from. reads_pages: whether the drafter is given page tables.
    """

    def __init__(
        self, drafter: DeviceDrafter | None, slots: DraftSlots, tables: PageTables, sampler: Sampler, most: int
    ) -> None:
        self.drafter, self.reads_pages = drafter, drafter is not None and drafter.reads_pages
        self._slots, self._tables, self._sampler = slots, tables, sampler
        count, device = len(slots.positions), slots.positions.device
        self.proposed = torch.zeros(count, most, dtype=torch.int64, device=device)
        self.odds = Odds.allocate(count, most, device)

    @property
    def taps(self) -> tuple[int, ...]:
        return self.drafter.taps if self.drafter else ()

    def depth(self, asked: int) -> int:
        """How many drafts are made where a row is asked for so many."""
        assert self.drafter is not None
        return next(depth for depth in self.drafter.depths if depth >= asked)

    def admit(self, admissions: Sequence[Admission]) -> None:
        for admission in admissions:
            self.odds.free[admission.slot].fill_(admission.request.params.seed is None)
        if self.drafter is not None:
            self.drafter.admit(admissions)

    def settle(self, slots: Sequence[int]) -> None:
        if self.drafter is not None:
            self.drafter.settle(slots)

    def tables(self, slots: Tensor) -> tuple[Tensor, ...]:
        """The slots' page tables, as `propose` wants them."""
        return tuple(table[slots] for table in self._tables.entries) if self.reads_pages else ()

    def propose(self, slots: Tensor, counts: Tensor, depth: int, tables: tuple[Tensor, ...]) -> None:
        """Have drafts made for slots [R] int64, padding for those that are to have none: counts [R] of each, `depth` at most.

        tables: the rows' page tables, of a drafter that has pages.
        """
        assert self.drafter is not None
        positions = self._slots.positions[slots]
        if self.reads_pages:  # behind the sequence's end nobody has taken a page
            counts = torch.minimum(counts, (self._slots.ends[slots] - positions).clamp(min=0))
        draw = DraftDraw(self._sampler, self.odds, slots, positions)
        asked = Asked(slots, counts, self._slots.next_tokens[slots], positions, tables, depth, draw)
        self.proposed[:, :depth].index_copy_(0, slots, self.drafter.propose(asked).tokens)

    def observe(
        self, batch: Batch, taps: tuple[Tensor, ...], final: Tensor, starts: Tensor, samples: Tensor
    ) -> Tensor | None:
        """A step's rows, samples [R] bool of which end in a sampled token, are accepted: [R], see `DeviceDrafter.observe`."""
        assert self.drafter is not None
        kept = self._slots.positions[batch.slots] - starts
        return self.drafter.observe(Seen(batch, taps, final, starts, kept, self._slots.next_tokens, samples))
