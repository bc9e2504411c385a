"""What a drafter on the device proposes as CUDA graphs: for numbers of rows, and of drafts where fewer take less time."""

from __future__ import annotations

from typing import Any

import torch

from headrace.kernels.accept_drafts import DraftSlots
from headrace.kernels.slot_lookup import slot_lookup
from headrace.runner.page_tables import PageTables
from headrace.runner.proposer import Proposer
from headrace.runner.upload import Upload
from headrace.types import Row

_WARM_UPS = 2


class ProposalGraph:
    """`depth` drafts for each of `size` rows, those among them that are asked for some, in `Proposer.proposed`."""

    def __init__(self, size: int, depth: int, proposer: Proposer, slots: DraftSlots, tables: PageTables) -> None:
        self.size, self.depth = size, depth
        self._proposer, self._slots, self._tables = proposer, slots, tables
        self._most_updates = size * len(tables.entries) * -(-(1 + proposer.proposed.shape[1]) // tables.page_tokens)
        self._upload = Upload(2 * size + 2 * self._most_updates, slots.positions.device)
        self._inputs = self._write(())
        self._upload.send()
        self._graph: torch.cuda.CUDAGraph | None = None

    def warm_up(self) -> None:
        """Run what will be captured, which may not be its first time."""
        for _ in range(_WARM_UPS):
            self._compute()

    def capture(self, memory: Any) -> None:
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=memory):
            self._compute()

    def propose(self, rows: tuple[Row, ...]) -> None:
        """Of at most `size` rows, none asked for more than `depth`."""
        self._write(rows)
        self._upload.send()
        self._run()

    def _run(self) -> None:
        assert self._graph is not None
        self._graph.replay()

    def _write(self, rows: tuple[Row, ...]) -> tuple[Any, ...]:
        upload, tables, spare = self._upload, self._tables, self.size - len(rows)
        indices, pages = tables.places((row.slot, update) for row in rows for update in row.page_updates)
        idle = self._most_updates - len(indices)
        upload.begin()
        return (
            upload.add([row.slot if row.asked else tables.padding_slot for row in rows] + [tables.padding_slot] * spare),
            upload.add([row.asked for row in rows] + [0] * spare),
            upload.add(indices + [tables.padding_entry] * idle),
            upload.add(pages + [tables.padding_page] * idle),
        )

    def _compute(self) -> None:
        slots, counts, updated, pages = (self._upload.tensor(span) for span in self._inputs)
        kept, tables = self._slots, self._tables
        where = torch.where(kept.frozen[slots], tables.padding_slot, slots)
        found: tuple[torch.Tensor, ...] = ()
        if self._proposer.reads_pages:
            _, rows_tables, _ = slot_lookup(
                tables.entries, updated, pages, kept.next_tokens, where, kept.positions[where], tables.page_tokens
            )
            found = rows_tables.unbind()
        self._proposer.propose(where, counts, self.depth, found)
