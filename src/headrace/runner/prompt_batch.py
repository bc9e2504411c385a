"""Packs a step with prompts into the tensors of a captured one: of more tokens and rows than it has, the rest padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.layers.batch import Batch
from headrace.plan.graph_rows import PromptShape
from headrace.runner.page_tables import PageTables
from headrace.runner.upload import Span, Upload
from headrace.types import Row

_ON_DEVICE = -1
"""In place of a token that the device has drawn."""


@dataclass(frozen=True, slots=True)
class PromptInputs:
    """What changes from step to step: for one shape always at the same places of an upload, but for the page updates.

    T tokens of the shape; R rows, first those of one token or none, then the prompts, behind them one of padding; D rows that
    may draw a token.
    """

    known: Span  # [T] int64
    token_slots: Span  # [T] int64
    positions: Span  # [T] int64
    slots: Span  # [R] int64
    lengths: Span  # [R] int32
    offsets: Span  # [R + 1] int32
    ends: Span  # [D] int64, tokens that a draw follows
    drawn_slots: Span  # [D] int64, padding for rows that draw nothing
    drawn_at: Span  # [D] int64, positions of the tokens to draw
    updated: Span  # [U] int64, indices of the page tables' entries, of as many updates as there are
    pages: Span  # [U] int64, what they become


def singles_first(rows: Sequence[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: len(row.tokens) > 1))


def prompts_of(rows: Sequence[Row]) -> int:
    """Rows of more than one token."""
    return sum(len(row.tokens) > 1 for row in rows)


def write(upload: Upload, shape: PromptShape, rows: tuple[Row, ...], tables: PageTables) -> PromptInputs:
    """The numbers of `rows`, which are `singles_first` and fit the shape, to be sent. Tokens that are left are one more row."""
    prompts, padding = prompts_of(rows), tables.padding_slot
    singles = len(rows) - prompts
    counts = np.array([len(row.tokens) or 1 for row in rows], dtype=np.int64)
    left = shape.tokens - int(counts.sum())
    spare = shape.rows - singles, shape.prompts - prompts
    starts, slots = (np.array(part, dtype=np.int64) for part in ([row.start for row in rows], [row.slot for row in rows]))

    def spread(of_rows: NDArray[np.int64], last: int, nothing: int) -> NDArray[np.int64]:
        """Numbers of rows as numbers of the shape's rows."""
        none, behind = np.full(spare[0], nothing), np.full(spare[1], nothing)
        return np.concatenate((of_rows[:singles], none, of_rows[singles:], [last], behind))

    row_counts = spread(counts, left, 0)
    offsets = np.concatenate(([0], row_counts.cumsum()))
    row_starts, row_slots = spread(starts, 0, 0), spread(slots, padding, padding)
    within = np.arange(shape.tokens) - offsets[:-1].repeat(row_counts)
    known = [token for row in rows for token in row.tokens or (_ON_DEVICE,)]
    drawn = [n for n, row in enumerate(rows) if row.samples]
    idle = shape.rows - len(drawn)
    upload.begin()
    fixed = (
        upload.add(known + [0] * left),
        upload.add(row_slots.repeat(row_counts)),
        upload.add(row_starts.repeat(row_counts) + within),
        upload.add(row_slots),
        upload.add(row_starts + row_counts, torch.int32),
        upload.add(offsets, torch.int32),
        upload.add([*(counts.cumsum()[drawn] - 1), *(0,) * idle]),
        upload.add([*slots[drawn], *(padding,) * idle]),
        upload.add([*(starts + counts)[drawn], *(0,) * idle]),
    )
    updated, pages = tables.places((row.slot, update) for row in rows for update in row.page_updates)
    return PromptInputs(*fixed, upload.add(updated), upload.add(pages))


def batch_of(upload: Upload, shape: PromptShape, inputs: PromptInputs, tables: PageTables, next_tokens: Tensor) -> Batch:
    """Of what was sent: operations on the device alone, so that a graph can hold them. next_tokens: each slot's next input."""
    at = upload.tensor
    known, token_slots, positions, slots = (
        at(span) for span in (inputs.known, inputs.token_slots, inputs.positions, inputs.slots)
    )
    longer = shape.prompts + 1
    return Batch(
        tokens=torch.where(known == _ON_DEVICE, next_tokens[token_slots], known),
        positions=positions,
        row_offsets=at(inputs.offsets),
        slots=slots,
        lengths=at(inputs.lengths),
        page_tables=tables.entries[:, slots].unbind(),
        write_at=tables.write_at(token_slots, positions),
        host_row_tokens=(1,) * shape.rows + (shape.tokens,) * longer,
        longer=longer,
    )
