"""How far each slot's sequence is, on the device: where drafts are verified, the host learns of it later."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.kernels.accept_drafts import DraftSlots
from headrace.kernels.gated_delta_verify import advance
from headrace.layers.batch import Pools
from headrace.runner.sampler import Sampler
from headrace.types import Admission


def draft_slots(pools: Pools, sampler: Sampler, device: torch.device) -> DraftSlots:
    """What is kept by slot, in tensors that others have and in new ones. The last slot, padding, is at 0 and never frozen."""
    assert pools.pending is not None and pools.parity is not None
    positions, ends = (torch.zeros_like(sampler.next_tokens) for _ in range(2))
    frozen = torch.zeros(len(positions), dtype=torch.bool, device=device)
    state = sampler.state
    return DraftSlots(
        positions, ends, frozen, pools.pending, pools.parity, sampler.next_tokens, state.integers, state.marks
    )


def begin(slots: DraftSlots, admissions: Sequence[Admission]) -> None:
    """The admitted slots are where their sequences begin, whose last token is sampled at the latest where they end.

    Filled in: an assignment of a number would wait for the device.
    """
    for admission in admissions:
        request = admission.request
        slots.positions[admission.slot].fill_(admission.start)
        slots.ends[admission.slot].fill_(len(request.prompt) + max(0, request.max_tokens - 1))
        slots.frozen[admission.slot].fill_(False)


def pass_by(slots: DraftSlots, rows: Tensor, tokens: Tensor, *, deferred: bool) -> None:
    """Live slots rows [R] are tokens [R] int64 further, and sample nothing. None is padding."""
    slots.positions.index_add_(0, rows, tokens)
    if deferred:
        advance(slots.pending, slots.parity, rows, torch.zeros_like(rows, dtype=torch.int32))
