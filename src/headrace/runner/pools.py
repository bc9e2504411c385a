"""The cache's tensors, allocated once at start: pages of keys and values, and state slots."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from headrace.cache.layout import CacheLayout
from headrace.kernels.gated_delta_verify import Ring
from headrace.layers.arena import Arena, in_one_piece
from headrace.layers.batch import Pools
from headrace.models.spec import AttentionSpec, GatedDeltaSpec, ModelSpec
from headrace.plan.dtypes import Dtypes, has_scales, ring_type


def allocate_pools(spec: ModelSpec, layout: CacheLayout, dtypes: Dtypes, device: torch.device) -> Pools:
    """Zeroed pools of exactly the layout's pages and slots (see `Pools` for shapes), in one piece of memory.

    Zeroed, because a masked position still enters a product with weight zero, and zero times NaN is NaN.
    """
    return in_one_piece(partial(_pools, spec, layout, dtypes), device)


def _pools(spec: ModelSpec, layout: CacheLayout, dtypes: Dtypes, arena: Arena) -> Pools:
    group_of = {layer: group.index for group in layout.groups for layer in group.layers}
    kv_type, state_type, tail_type = (getattr(torch, name) for name in (dtypes.kv, dtypes.state, dtypes.compute))
    keys: list[Tensor | None] = []
    values: list[Tensor | None] = []
    key_scales: list[Tensor | None] = []
    value_scales: list[Tensor | None] = []
    states: list[Tensor | None] = []
    tails: list[Tensor | None] = []
    for index, mixer in enumerate(spec.mixers):
        if isinstance(mixer, AttentionSpec):
            shape = (layout.pool_pages[group_of[index]], layout.page_tokens, mixer.kv_heads, mixer.head_dim)
            keys.append(arena.take(shape, kv_type))
            values.append(arena.take(shape, kv_type))
            for scales in (key_scales, value_scales) if has_scales(dtypes.kv) else ():
                scales.append(arena.take(shape[:-1], torch.float16))
            states.append(None)
            tails.append(None)
        elif isinstance(mixer, GatedDeltaSpec):
            keys.append(None)
            values.append(None)
            for scales in (key_scales, value_scales) if has_scales(dtypes.kv) else ():
                scales.append(None)
            states.append(arena.take((layout.pool_states, mixer.value_heads, mixer.value_dim, mixer.key_dim), state_type))
            tails.append(arena.take((layout.pool_states, mixer.conv_width - 1, mixer.conv_channels), tail_type))
    types = {"compute": tail_type, "kv": kv_type, "int64": torch.int64}
    kept = spec.drafter.states if spec.drafter else ()
    windows = tuple(arena.take((layout.pool_states, *state.shape), types[state.type]) for state in kept)
    groups = tuple(group_of.get(index) for index in range(len(spec.mixers)))
    pools = Pools(
        tuple(keys), tuple(values), tuple(states), tuple(tails), groups, tuple(key_scales), tuple(value_scales), windows=windows
    )
    return _with_rings(pools, spec, layout, dtypes, arena) if layout.drafts else pools


def _with_rings(pools: Pools, spec: ModelSpec, layout: CacheLayout, dtypes: Dtypes, arena: Arena) -> Pools:
    rings = tuple(_ring(mixer, layout, dtypes, arena) if isinstance(mixer, GatedDeltaSpec) else None for mixer in spec.mixers)
    pending, parity = (arena.take((layout.pool_slots,), torch.int32) for _ in range(2))
    return replace(pools, rings=rings, pending=pending, parity=parity)


def _ring(mixer: GatedDeltaSpec, layout: CacheLayout, dtypes: Dtypes, arena: Arena) -> Ring:
    kept, compute = getattr(torch, ring_type(dtypes.compute)), getattr(torch, dtypes.compute)
    halves = (layout.pool_slots, 2, layout.drafts)
    return Ring(
        arena.take((*halves, mixer.key_heads, mixer.key_dim), kept),
        arena.take((*halves, mixer.value_heads, mixer.value_dim), kept),
        arena.take((*halves, mixer.value_heads), torch.promote_types(compute, torch.float32)),
        arena.take((*halves, mixer.conv_channels), compute),
    )


def clear_slot(pools: Pools, slot: int) -> None:
    """Make `slot` the state of an empty sequence. Pages need no clearing: what lies past a length is never used."""
    for tensors in (pools.states, pools.conv_tails, *((window,) for window in pools.windows)):
        rows = [tensor[slot] for tensor in tensors if tensor is not None]
        if rows:
            torch._foreach_zero_(rows)  # one launch for all layers
    if pools.pending is not None:
        pools.pending[slot].fill_(0)
