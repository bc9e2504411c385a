"""Steps of an engine whose rows may carry drafts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.cache.layout import CacheLayout
from headrace.layers.batch import Pools
from headrace.models.decoder import Decoder
from headrace.runner.draft_batch import DraftPacker
from headrace.runner.draft_graphs import DraftCaptured, DraftGraphs
from headrace.runner.page_tables import PageTables
from headrace.runner.progress import begin, draft_slots
from headrace.runner.sampler import Sampler
from headrace.runner.verify import DrawnRuns, Verifier
from headrace.types import Admission, Row


class Drafting:
    """Positions, lengths and acceptance are the device's; the host knows which slots may have pending drafts.

    A step in which nothing is drafted and no row can have drafts pending runs as in an engine without drafts.
    """

    def __init__(
        self, layout: CacheLayout, decoder: Decoder, pools: Pools, tables: PageTables, sampler: Sampler, most_tokens: int,
        device: torch.device,
    ) -> None:
        self._decoder, self._pools, self._tables, self._sampler = decoder, pools, tables, sampler
        self._drafts = layout.drafts
        self.graphs: DraftGraphs | None = None
        self.slots = draft_slots(pools, sampler, device)
        self._verifier = Verifier(decoder.logits, sampler, self.slots)
        self._packer = DraftPacker(tables, self.slots, most_tokens, layout.pool_slots, sum(layout.pages), device)
        self._pends = [False] * layout.slots  # whether drafts of the slot's last row may have been accepted

    @property
    def sent_bytes(self) -> int:
        """Of the numbers that are sent with a step, on the device."""
        return self._packer.nbytes

    def admit(self, admissions: Sequence[Admission]) -> None:
        begin(self.slots, admissions)
        for admission in admissions:
            self._pends[admission.slot] = False

    def capture(self, sizes: tuple[int, ...]) -> None:
        """Capture steps of so many rows as graphs."""
        captured = Verifier(self._decoder.scores, self._sampler, self.slots)
        self.graphs = DraftGraphs(sizes, self._drafts, DraftCaptured(
            self._decoder, self._pools, self._tables, self.slots, self._sampler, captured, self._verifier,
            torch.cuda.graph_pool_handle(),
        ))

    def run(self, rows: tuple[Row, ...]) -> tuple[DrawnRuns | None, Tensor | None]:
        """A step of rows that are `short_first`: what they drew, and the hidden states of all tokens if any were known."""
        deferred = any(row.drafts or self._pends[row.slot] for row in rows)
        graph = self.graphs.graph_for(rows, deferred=deferred) if self.graphs else None
        folds = any(row.tokens and self._pends[row.slot] for row in rows)
        for row in rows:
            self._pends[row.slot] = bool(row.drafts)
        if graph is not None:
            return graph.replay(rows), None
        step = self._packer.pack(rows, deferred=deferred, folds=folds)
        hidden = self._decoder(step.batch, self._pools)
        return self._verifier.finish(step, hidden), hidden
