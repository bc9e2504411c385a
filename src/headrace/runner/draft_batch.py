"""Packs a plan's rows whose positions only the device knows, since drafts of earlier steps may have been accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headrace.kernels.accept_drafts import DraftSlots
from headrace.kernels.gated_delta_verify import MAX_TOKENS
from headrace.layers.batch import Batch, Deferred
from headrace.plan.uploads import step_words
from headrace.runner.page_tables import PageTables
from headrace.runner.proposer import Proposer
from headrace.runner.upload import Upload
from headrace.types import Row


@dataclass(frozen=True, slots=True)
class Runs:
    """The S rows of a step that sample, each a run of tokens: one behind its last certain token, one behind each draft that it
    accepts. Their places, N in all, lie run by run.

    tokens [T]: the batch's. last [S] int32: of them the runs' last certain ones, which counts [S] int64 drafts follow. slots
    [S] int64: with padding for those that are frozen. positions [S] int64: of `last`. begins [S] int32: the runs' first places.
    Of each place, [N] int64: place_at, the token that it is drawn behind, None where that is all tokens; place_slots; drawn_at,
    its position. draft_of [T] int64: behind which draft number of a drafter on the device each token stands, counted from 0, -1
    for none. On the host: names, the slots; place_names, those of places; most, the most places of a run.
    """

    tokens: Tensor
    last: Tensor
    counts: Tensor
    slots: Tensor
    positions: Tensor
    begins: Tensor
    place_at: Tensor | None
    place_slots: Tensor
    drawn_at: Tensor
    draft_of: Tensor
    names: tuple[int, ...]
    place_names: tuple[int, ...]
    host_begins: tuple[int, ...]
    most: int


@dataclass(frozen=True, slots=True)
class DraftStep:
    """A batch, and the runs to be drawn behind it. others: the rows that sample nothing; certain [R] int64: tokens; starts [R]
    int64: positions of the rows' first ones.
    """

    batch: Batch
    runs: Runs | None
    certain: Tensor
    starts: Tensor
    others: Tensor | None = None


def tokens_of(row: Row) -> int:
    """Certain tokens and drafts."""
    return (len(row.tokens) or 1) + row.draft_count


def short_first(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Rows that recurrent layers verify before those that they compute as prompts, and of these first those of one token."""
    return tuple(sorted(rows, key=_kind))


def _kind(row: Row) -> int:
    """0 of one token, 1 of those that are verified, 2 of those that are computed as prompts."""
    tokens = tokens_of(row)
    return (tokens > 1) + (tokens > MAX_TOKENS)


class DraftPacker:
    """Packs steps of at most max_rows rows and max_tokens tokens; the batches' tensors are views of one buffer, valid until the
    next `pack`.
    """

    def __init__(
        self, tables: PageTables, slots: DraftSlots, proposer: Proposer, max_tokens: int, max_rows: int, pages: int,
        device: torch.device,
    ) -> None:
        self._tables, self._slots, self._proposer = tables, slots, proposer
        self._upload = Upload(step_words(max_tokens, max_rows, pages, drafts=True), device)

    @property
    def nbytes(self) -> int:
        """Of the device's memory."""
        return self._upload.nbytes

    def pack(self, rows: tuple[Row, ...], *, deferred: bool, folds: bool = False) -> DraftStep:
        """The batch of `rows`, which are `short_first`. deferred, folds: see `layers.batch.Deferred`."""
        upload, kept = self._upload, self._slots
        upload.begin()
        sure, counts = (np.array([f(row) for row in rows]) for f in (lambda row: len(row.tokens) or 1, tokens_of))
        offsets = np.concatenate(([0], counts.cumsum()))
        owner = upload.add(np.arange(len(rows)).repeat(counts))
        within = upload.add(np.arange(offsets[-1]) - offsets[:-1].repeat(counts))
        draft_of = upload.add(_draft_of(rows, sure, counts))
        known = upload.add([token for row in rows for token in (*(row.tokens or (0,)), *row.drafts, *(-1,) * row.asked)])
        slots, certain = upload.add([row.slot for row in rows]), upload.add(sure)
        row_counts, row_offsets = upload.add(counts), upload.add(offsets, torch.int32)
        carried = upload.add([i for i, row in enumerate(rows) if not row.tokens])
        others = upload.add([i for i, row in enumerate(rows) if not row.samples])
        sampled = np.array([i for i, row in enumerate(rows) if row.samples], dtype=np.int64)
        last, places = (offsets[:-1] + sure - 1)[sampled], (counts - sure)[sampled] + 1
        begins = places.cumsum() - places
        asked = upload.add([row.asked for row in rows])
        runs_at, run_last, run_counts = upload.add(sampled), upload.add(last, torch.int32), upload.add(places - 1)
        run_begins, place_run = upload.add(begins, torch.int32), upload.add(np.arange(len(sampled)).repeat(places))
        place_at = upload.add(np.arange(places.sum()) + (last - begins).repeat(places))
        updates = [upload.add(part) for part in self._tables.places((r.slot, u) for r in rows for u in r.page_updates)]
        upload.send()

        at = upload.tensor
        if updates[0].count:
            self._tables.apply(at(updates[0]), at(updates[1]))
        where = torch.where(kept.frozen[at(slots)], self._tables.padding_slot, at(slots))
        starts, of_token = kept.positions[where], where[at(owner)]
        positions = starts[at(owner)] + at(within)
        # Behind the sequence's end nobody has taken a page.
        written_to = torch.where(positions < kept.ends[of_token], of_token, self._tables.padding_slot)
        tokens = at(known)
        if most := max(row.asked for row in rows):
            wanted = torch.where(at(asked) > 0, where, self._tables.padding_slot)
            self._proposer.propose(wanted, at(asked), self._proposer.depth(most), self._proposer.tables(wanted))
            place = (at(within) - at(certain)[at(owner)]).clamp(0, most - 1)
            tokens = torch.where(tokens < 0, self._proposer.proposed[of_token, place], tokens)
        if carried.count:
            tokens.index_copy_(0, at(row_offsets).long()[at(carried)], kept.next_tokens[where[at(carried)]])
        batch = Batch(
            tokens=tokens,
            positions=positions,
            row_offsets=at(row_offsets),
            slots=where,
            lengths=(starts + at(row_counts)).int(),
            page_tables=tuple(table[where] for table in self._tables.entries),
            write_at=self._tables.write_at(written_to, positions),
            host_row_tokens=tuple(counts.tolist()),
            deferred=_deferred(at(certain), where, counts, folds) if deferred else None,
        )
        runs = None
        if len(sampled):
            run_slots, names = where[at(runs_at)], [rows[i].slot for i in sampled]
            runs = Runs(
                tokens, at(run_last), at(run_counts), run_slots, positions[at(run_last).long()], at(run_begins), at(place_at),
                run_slots[at(place_run)], positions[at(place_at)] + 1, at(draft_of), tuple(names),
                tuple(np.array(names).repeat(places).tolist()), tuple(begins.tolist()), int(places.max()),
            )
        return DraftStep(batch, runs, at(certain), starts, at(others) if others.count else None)


def _draft_of(rows: Sequence[Row], sure: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[T]: see `Runs`."""
    behind = np.concatenate([np.arange(count) - (certain - 1) for certain, count in zip(sure, counts, strict=True)])
    asked = np.array([row.asked for row in rows]).repeat(counts)
    return np.where((behind >= 0) & (behind < asked), behind, -1)


def _deferred(certain: Tensor, slots: Tensor, counts: np.ndarray, folds: bool) -> Deferred:
    short = counts <= MAX_TOKENS
    rows = int(short.sum())
    long_slots = slots[rows:].clone()  # not in the midst of a tensor: kernels are compiled apart for such addresses
    return Deferred(certain.int(), rows, int(counts[short].sum()), long_slots, folds)
