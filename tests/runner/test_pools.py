"""What is allocated is what the budget says, to the byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headrace.config import EngineConfig
from headrace.hardware import Hardware
from headrace.models.spec import (
    AttentionSpec,
    DrafterCache,
    DrafterState,
    GatedDeltaSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    RopeSpec,
    WeightMap,
)
from headrace.plan.budget import make_budget
from headrace.plan.draft_memory import ring_bytes
from headrace.plan.dtypes import Dtypes, resolve_dtypes
from headrace.runner.page_tables import PageTables
from headrace.runner.pools import allocate_pools
from headrace.runner.progress import draft_slots
from headrace.runner.proposer import Proposer
from headrace.runner.sampler import Sampler

ATTENTION = AttentionSpec(4, 2, 16, RopeSpec(1e4, 16))
MIXERS = (ATTENTION, GatedDeltaSpec(2, 4, 8, 8, 4), replace(ATTENTION, window=32), replace(ATTENTION, kv_heads=1, head_dim=24))
MODEL = ModelSpec("test", 100, 32, tuple(LayerSpec(mixer, MlpSpec(64)) for mixer in MIXERS), 1e-6, 512)
DRAFTER = DrafterCache((ATTENTION,), (DrafterState((32,)), DrafterState((4, 2, 8), "kv"), DrafterState((9,), "int64")))
CPU = Hardware("cpu", "CPU", 1 << 33, 1 << 32)


@pytest.mark.parametrize("drafter", [None, DRAFTER], ids=["alone", "drafter"])
@pytest.mark.parametrize("kv_dtype", ["auto", "bf16", "fp8", "int8"])
def test_pools_take_the_budget_s_bytes(kv_dtype: str, drafter: DrafterCache | None) -> None:
    model = replace(MODEL, drafter=drafter)
    config = EngineConfig(max_seqs=3, context=100, kv_dtype=kv_dtype)
    dtypes = resolve_dtypes(config, CPU, "float32")
    budget = make_budget(model, WeightMap(()), CPU, config, dtypes)
    pools = allocate_pools(model, budget.layout, dtypes, torch.device("cpu"))
    kinds = (pools.keys, pools.values, pools.key_scales, pools.value_scales, pools.states, pools.conv_tails, pools.windows)
    held = [tensor for kind in kinds for tensor in kind if tensor is not None]
    assert len(pools.windows) == (3 if drafter else 0) and len(pools.keys) == (5 if drafter else 4)
    lines = {line.name: line.bytes for line in budget.lines}
    names = ("kv pages 0", "kv pages 1", "state slots", "gpu checkpoints")
    assert sum(tensor.nbytes for tensor in held) == sum(lines[name] for name in names)
    scales = pools.scales(0)
    assert pools.rings == ()
    assert (scales[0] is not None) == (kv_dtype in ("fp8", "int8")) and pools.scales(1) == (None, None)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_drafts_take_the_budget_s_bytes(dtype: str) -> None:
    config = EngineConfig(max_seqs=3, context=100, dtype=dtype)
    dtypes = resolve_dtypes(config, CPU, "float32")
    budget = make_budget(MODEL, WeightMap(()), CPU, config, dtypes, 5)
    pools = allocate_pools(MODEL, budget.layout, dtypes, torch.device("cpu"))
    sampler = Sampler(budget.layout.pool_slots, MODEL.vocab_size, torch.device("cpu"), torch.float32)
    slots = draft_slots(pools, sampler, torch.device("cpu"))
    (ring,) = (ring for ring in pools.rings if ring is not None)
    proposer = Proposer(None, slots, PageTables(budget.layout, 100, torch.device("cpu")), sampler, 5)
    held = [ring.keys, ring.deltas, ring.decays, ring.inputs, slots.pending, slots.parity, slots.positions, slots.ends,
            slots.frozen, proposer.proposed, proposer.odds.ids, proposer.odds.chances, proposer.odds.counts, proposer.odds.free]
    lines = {line.name: line.bytes for line in budget.lines}
    assert sum(tensor.nbytes for tensor in held) == lines["drafts"]
    assert ring.keys.shape == (4, 2, 5, 2, 8) and ring.keys.itemsize == (2 if dtype.endswith("16") else ring.inputs.itemsize)
    without = make_budget(MODEL, WeightMap(()), CPU, config, dtypes)
    assert without.layout.pages[0] == budget.layout.pages[0] and without.layout.pages[1] < budget.layout.pages[1]


def test_the_published_ring() -> None:
    """1.78 MB a draft and half of 48 layers in 16 bits, 25 MB a sequence for 7 drafts."""
    layers = tuple(LayerSpec(GatedDeltaSpec(16, 48, 128, 128, 4), MlpSpec(64)) for _ in range(48))
    bf16 = Dtypes("bfloat16", "bfloat16", "float16")
    assert ring_bytes(replace(MODEL, layers=layers), bf16, 1) == 2 * 1_778_688
    assert ring_bytes(replace(MODEL, layers=layers), bf16, 7) == 24_901_632
