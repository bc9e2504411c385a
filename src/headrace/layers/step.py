"""What all layers of one forward pass share: computed once, used by each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.kernels.angles import angles
from headrace.kernels.bounded_rows import BoundedRows
from headrace.kernels.paged_attention import PagedRows, plan_rows
from headrace.kernels.precision import accumulation_dtype
from headrace.kernels.rows import PackedRows
from headrace.layers.batch import Batch, Pools
from headrace.models.spec import RopeSpec


@dataclass(frozen=True, slots=True)
class Step:
    """A batch, its pools, and what follows from them for every layer.

    rows: what recurrent layers need of the lengths of the rows that they do not verify. paged_rows: for each cache group, where
    its keys lie. rotary: (cos, sin) [T, 1, rotary_dims / 2] of each kind of rotary embedding in the model.
    """

    batch: Batch
    pools: Pools
    rows: PackedRows
    paged_rows: tuple[PagedRows, ...]
    rotary: Mapping[RopeSpec, tuple[Tensor, Tensor]]


def prepare_step(
    batch: Batch, pools: Pools, windows: tuple[int | None, ...], freqs: Mapping[RopeSpec, Tensor], hidden: Tensor
) -> Step:
    """windows: each of the model's cache groups', which come first in the batch, before a drafter's. freqs: the model's rotary
    frequencies. hidden: any activation, for its type and device.
    """
    pages = {group: keys.shape[1] for group, keys in zip(pools.group_of, pools.keys, strict=True) if keys is not None}
    planned = tuple(
        plan_rows(
            table, batch.lengths, batch.row_offsets, batch.host_row_tokens, pages[group], window, longer=batch.longer
        )
        for group, (table, window) in enumerate(zip(batch.page_tables, windows, strict=False))
    )
    return Step(
        batch, pools, _recurrent_rows(batch, hidden.device), planned,
        {spec: angles(batch.positions, f, accumulation_dtype(hidden.dtype)) for spec, f in freqs.items()},
    )


def _recurrent_rows(batch: Batch, device: torch.device) -> PackedRows:
    if batch.longer is not None:
        return BoundedRows(batch.row_offsets, batch.longer, len(batch.tokens))
    return PackedRows(batch.host_row_tokens[batch.deferred.short_rows if batch.deferred else 0 :], device)
