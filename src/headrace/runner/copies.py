"""Pages and states copied within the pools, in the stream of the steps: what the prefix cache keeps, and starts from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.kernels.gated_delta_verify import fold
from headrace.layers.batch import Pools
from headrace.types import PageCopy, StateCopy


def copy_pages(pools: Pools, copies: Sequence[PageCopy], device: torch.device) -> None:
    """Keys and values, and their scales, of all layers of the pages' groups. No page is the target of two copies; a page that
    is also copied away has what it had before.
    """
    for group in sorted({copy.group for copy in copies}):
        pairs = [(copy.source, copy.target) for copy in copies if copy.group == group]
        sources, targets = _columns(pairs, device)
        for layer, owner in enumerate(pools.group_of):
            if owner == group:
                for pages in (pools.keys[layer], pools.values[layer], *pools.scales(layer)):
                    if pages is not None:
                        _codes(pages).index_copy_(0, targets, _codes(pages).index_select(0, sources))


def _columns(pairs: list[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """On the device, each a tensor of its own: kernels are compiled apart for addresses in the midst of one."""
    first, second = zip(*pairs, strict=True)
    return torch.tensor(first).to(device, non_blocking=True), torch.tensor(second).to(device, non_blocking=True)


def _codes(pages: Tensor) -> Tensor:
    """8-bit numbers as integers, which every operation takes."""
    return pages.view(torch.int8) if pages.itemsize == 1 else pages


def keep_states(pools: Pools, copies: Sequence[StateCopy], slots: int, device: torch.device) -> None:
    """Copy slots' states, with the drafts that are accepted and wait in their rings, to checkpoints, which lie behind `slots`
    slots. No checkpoint is the target of two copies.
    """
    if not pools.rings:
        for copy in copies:
            _copy_state(pools, copy.slot, slots + copy.checkpoint)
        return
    sources, targets = _columns([(copy.slot, slots + copy.checkpoint) for copy in copies], device)
    _fold(pools, sources, targets)
    for window in pools.windows:
        window.index_copy_(0, targets, window[sources])


def take_in(pools: Pools, slots: Sequence[int], device: torch.device) -> None:
    """Drafts that are accepted and wait in the slots' rings join their states; no drafts are pending then."""
    assert pools.pending is not None
    where = torch.tensor(slots).to(device, non_blocking=True)
    _fold(pools, where, where)
    pools.pending.index_fill_(0, where, 0)


def _fold(pools: Pools, sources: Tensor, targets: Tensor) -> None:
    assert pools.pending is not None and pools.parity is not None
    counts = pools.pending[sources]
    for tails, states, ring in zip(pools.conv_tails, pools.states, pools.rings, strict=True):
        if tails is not None and states is not None and ring is not None:
            fold(tails, states, ring, pools.parity, sources, counts, targets)


def resume_state(pools: Pools, slot: int, checkpoint: int, slots: int) -> None:
    """Make a checkpoint's state the slot's, with an empty ring."""
    _copy_state(pools, slots + checkpoint, slot)
    empty_ring(pools, slot)


def empty_ring(pools: Pools, slot: int) -> None:
    """No drafts of the slot's are pending."""
    if pools.pending is not None:
        pools.pending[slot].fill_(0)


def _copy_state(pools: Pools, source: int, target: int) -> None:
    for tensors in (pools.states, pools.conv_tails, *((window,) for window in pools.windows)):
        found = [tensor for tensor in tensors if tensor is not None]
        if found:  # a launch for many layers together
            torch._foreach_copy_([tensor[target] for tensor in found], [tensor[source] for tensor in found])
