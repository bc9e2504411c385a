"""Bytes of a runner's tensors, by the line of the budget that planned them; and the cache written to its last byte."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from headrace.cache.layout import CacheLayout
from headrace.layers.batch import Pools
from headrace.plan.blocks import block_bytes

_HALF = 0x30
"""A byte that repeated is a small number in every type: 0.13 as float16, 0.5 as e4m3."""


def pool_bytes(pools: Pools, layout: CacheLayout) -> dict[str, int]:
    """Of pages, state slots, checkpoints, padding and rings, as the tensors have them."""
    found: dict[str, int] = {}
    padding = 0
    for group, pages, held in zip(layout.groups, layout.pages, layout.pool_pages, strict=True):
        tensors = [t for layer in group.layers for t in (pools.keys[layer], pools.values[layer], *pools.scales(layer))]
        each = total_bytes(tensors) // held
        found[f"kv pages {group.index}"] = pages * each
        padding += (held - pages) * each
    states = [tensor for tensor in (*pools.states, *pools.conv_tails, *pools.windows) if tensor is not None]
    if states:
        each = sum(tensor[0].nbytes for tensor in states)
        found["state slots"] = layout.slots * each
        padding += layout.padding * each
        beyond = total_bytes(states) - layout.pool_slots * each
        found |= {"gpu checkpoints": beyond} if beyond else {}
    rings = _ring_tensors(pools)
    return found | ({"padding": padding} if padding else {}) | ({"drafts": total_bytes(rings)} if rings else {})


def pool_tensors(pools: Pools) -> tuple[Tensor, ...]:
    kept = *pools.keys, *pools.values, *pools.key_scales, *pools.value_scales, *pools.states, *pools.conv_tails
    return *(tensor for tensor in kept if tensor is not None), *pools.windows, *_ring_tensors(pools)


def _ring_tensors(pools: Pools) -> list[Tensor]:
    return [t for ring in pools.rings if ring is not None for t in (ring.keys, ring.deltas, ring.decays, ring.inputs)]


def allocated_bytes(tensors: Iterable[Tensor]) -> int:
    """What PyTorch's allocator counts for the memory that the tensors lie in, which may be one piece for many."""
    pieces = {storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in tensors)}
    return sum(map(block_bytes, pieces.values()))


def total_bytes(tensors: Iterable[Tensor | None]) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


@torch.inference_mode()
def occupy(pools: Pools) -> None:
    """Write every byte of pages and states, so that a system which gives memory only when it is used gives all of it."""
    kept = pools.keys, pools.values, pools.key_scales, pools.value_scales, pools.states, pools.conv_tails, pools.windows
    for tensors in kept:
        for tensor in tensors:
            if tensor is not None:
                tensor.view(torch.uint8).fill_(_HALF)
