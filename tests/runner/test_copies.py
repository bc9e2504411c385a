"""Pages and states copied in the pools: where they go, and that nothing else moves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from headrace.cache.layout import CacheLayout, cache_groups
from headrace.layers.batch import Pools
from headrace.models import qwen3, qwen3_5
from headrace.models.spec import AttentionSpec, DrafterCache, DrafterState, ModelSpec, RopeSpec
from headrace.plan.dtypes import Dtypes
from headrace.runner.copies import copy_pages, keep_states, resume_state
from headrace.runner.pools import allocate_pools
from headrace.types import PageCopy, StateCopy

HYBRID = {
    "model_type": "qwen3_5_text", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "max_position_embeddings": 4096, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}
WINDOWED = {
    "model_type": "qwen3", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "attention_bias": False, "max_position_embeddings": 4096, "tie_word_embeddings": False, "use_sliding_window": True,
    "sliding_window": 13, "max_window_layers": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]
SLOTS, CHECKPOINTS = 3, 2
DRAFTER = DrafterCache((AttentionSpec(2, 1, 8, RopeSpec(1e4, 8)),), (DrafterState((32,)), DrafterState((2, 3), "int64")))


def make(spec: ModelSpec, dtypes: Dtypes, device: str, drafts: int = 0) -> tuple[Pools, CacheLayout]:
    """Random numbers everywhere, and accepted drafts of every count."""
    groups = cache_groups(spec)
    layout = CacheLayout(groups, 4, (6,) * len(groups), SLOTS, drafts > 0, drafts, CHECKPOINTS)
    pools = allocate_pools(spec, layout, dtypes, torch.device(device))
    generator = torch.Generator(device).manual_seed(5)
    for tensor in everything(pools):
        if tensor.itemsize == 1:
            tensor.view(torch.int8).random_(0, 64, generator=generator)
        elif tensor.dtype.is_floating_point:
            tensor.normal_(generator=generator).mul_(0.3)
        else:
            tensor.random_(0, 99, generator=generator)
    if pools.pending is not None:
        pools.pending.copy_(torch.arange(len(pools.pending)) % (drafts + 1))
    return pools, layout


def everything(pools: Pools) -> list[Tensor]:
    kept = (*pools.keys, *pools.values, *pools.key_scales, *pools.value_scales, *pools.states, *pools.conv_tails)
    rings = (part for ring in pools.rings if ring is not None for part in (ring.keys, ring.deltas, ring.decays, ring.inputs))
    return [tensor for tensor in (*kept, *pools.windows, *rings) if tensor is not None]


def states(pools: Pools) -> list[Tensor]:
    return [tensor for tensor in (*pools.states, *pools.conv_tails, *pools.windows) if tensor is not None]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kv", ["float32", "bfloat16", "int8", "float8_e4m3fn"])
def test_pages_are_copied_in_all_layers_of_their_group(kv: str, device: str) -> None:
    spec = qwen3.spec(WINDOWED)
    pools, _ = make(spec, Dtypes("float32", kv, "float32"), device)  # type: ignore[arg-type]
    before = [tensor.clone() for tensor in everything(pools)]
    # The first is copied away and then overwritten; one is given to whom it was copied for.
    copy_pages(pools, (PageCopy(0, 1, 4), PageCopy(0, 2, 1), PageCopy(0, 5, 5), PageCopy(1, 0, 3)), torch.device(device))
    layers = pools.group_of
    tensors = [*zip(layers, pools.keys, strict=True), *zip(layers, pools.values, strict=True)]
    for scales in (pools.key_scales, pools.value_scales):
        tensors += zip(layers, scales, strict=True) if scales else ()
    assert len(tensors) == len(before)
    for (group, tensor), old in zip(tensors, before, strict=True):
        order = [0, 2, 2, 3, 1, 5] if group == 0 else [0, 1, 2, 0, 4, 5]
        assert tensor is not None
        assert torch.equal(tensor.view(torch.uint8), old.view(torch.uint8)[order])


@pytest.mark.parametrize("device", DEVICES)
def test_states_are_kept_and_resumed(device: str) -> None:
    spec = replace(qwen3_5.spec(HYBRID), drafter=DRAFTER)
    pools, layout = make(spec, Dtypes("float32", "float32", "float32"), device)
    assert len(pools.keys) == len(spec.layers) + 1 and pools.group_of[-1] == 0
    before = [tensor.clone() for tensor in states(pools)]
    keep_states(pools, (StateCopy(2, 0), StateCopy(0, 1)), layout.pool_slots, torch.device(device))
    resume_state(pools, 1, 0, layout.pool_slots)
    for tensor, old in zip(states(pools), before, strict=True):
        assert torch.equal(tensor, old[[0, 2, 2, 2, 0]])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("types", [("float64", "float64"), ("float32", "float32"), ("bfloat16", "float16")])
def test_accepted_drafts_are_folded_into_what_is_kept(types: tuple[str, str], device: str) -> None:
    """The slot itself still has them in its ring; whoever resumes begins with an empty one."""
    if device == "cpu" and types[0] == "bfloat16":
        pytest.skip("references compute in float32 and better")
    spec = replace(qwen3_5.spec(HYBRID), drafter=DRAFTER)
    pools, layout = make(spec, Dtypes(types[0], types[0], types[1]), device, drafts=3)  # type: ignore[arg-type]
    place, before = torch.device(device), [tensor.clone() for tensor in everything(pools)]
    assert pools.pending is not None and pools.pending.tolist() == [0, 1, 2, 3]
    keep_states(pools, (StateCopy(0, 1), StateCopy(2, 0)), layout.pool_slots, place)
    for tensor, old in zip(everything(pools), before, strict=True):
        assert torch.equal(tensor[: layout.pool_slots], old[: layout.pool_slots]), "slots, pages and rings are as they were"
    for tensor in states(pools):
        assert torch.equal(tensor[layout.pool_slots + 1], tensor[0]), "without drafts it is the state itself"
    plain = replace(pools, pending=torch.zeros_like(pools.pending))
    keep_states(plain, (StateCopy(2, 1),), layout.pool_slots, place)
    assert any(not torch.equal(t[layout.pool_slots], t[layout.pool_slots + 1]) for t in states(pools)), "with drafts it is not"
    resume_state(pools, 1, 0, layout.pool_slots)
    assert pools.pending.tolist() == [0, 0, 2, 3]
    for tensor in states(pools):
        assert torch.equal(tensor[1], tensor[layout.pool_slots])
