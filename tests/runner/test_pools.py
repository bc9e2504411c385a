"""What is allocated is what the budget says, to the byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headrace.config import EngineConfig
from headrace.hardware import Hardware
from headrace.models.spec import AttentionSpec, GatedDeltaSpec, LayerSpec, MlpSpec, ModelSpec, RopeSpec, WeightMap
from headrace.plan.budget import make_budget
from headrace.plan.dtypes import resolve_dtypes
from headrace.runner.pools import allocate_pools

ATTENTION = AttentionSpec(4, 2, 16, RopeSpec(1e4, 16))
MIXERS = (ATTENTION, GatedDeltaSpec(2, 4, 8, 8, 4), replace(ATTENTION, window=32), replace(ATTENTION, kv_heads=1, head_dim=24))
MODEL = ModelSpec("test", 100, 32, tuple(LayerSpec(mixer, MlpSpec(64)) for mixer in MIXERS), 1e-6, 512)
CPU = Hardware("cpu", "CPU", 1 << 33, 1 << 32)


@pytest.mark.parametrize("kv_dtype", ["auto", "bf16", "fp8", "int8"])
def test_pools_take_the_budget_s_bytes(kv_dtype: str) -> None:
    config = EngineConfig(max_seqs=3, context=100, kv_dtype=kv_dtype)
    dtypes = resolve_dtypes(config, CPU, "float32")
    budget = make_budget(MODEL, WeightMap(()), CPU, config, dtypes)
    pools = allocate_pools(MODEL, budget.layout, dtypes, torch.device("cpu"))
    held = [tensor for kind in (pools.keys, pools.values, pools.key_scales, pools.value_scales, pools.states, pools.conv_tails)
            for tensor in kind if tensor is not None]
    lines = {line.name: line.bytes for line in budget.lines}
    assert sum(tensor.nbytes for tensor in held) == sum(lines[name] for name in ("kv pages 0", "kv pages 1", "state slots"))
    scales = pools.scales(0)
    assert (scales[0] is not None) == (kv_dtype in ("fp8", "int8")) and pools.scales(1) == (None, None)
