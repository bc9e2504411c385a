"""What an engine tells of itself once it is built."""

from __future__ import annotations

import os

from headrace.config import EngineConfig
from headrace.engine.start import Start
from headrace.hardware import Hardware
from headrace.models.spec import WeightMap
from headrace.plan.auto_drafter import Drafting
from headrace.plan.budget import Budget
from headrace.plan.checkpoint import Model
from headrace.plan.drafters import DrafterMemory
from headrace.plan.dtypes import Dtypes
from headrace.plan.execution import resolve_execution
from headrace.plan.prefix_cache import prefix_settings
from headrace.quantities import counted
from headrace.types import EngineInfo


def describe(
    model: Model, config: EngineConfig, budget: Budget, dtypes: Dtypes, hardware: Hardware, drafting: Drafting,
    start: Start,
) -> EngineInfo:
    execution = resolve_execution(config, hardware, dtypes.compute)
    _, kept = prefix_settings(model.spec, budget.layout, config, dtypes, budget.chunk_tokens)
    return EngineInfo(
        model=f"{config.random_weights}, random" if config.random_weights else os.path.abspath(model.checkpoint.path),
        device=hardware.kind,
        dtype=dtypes.compute,
        context=budget.context,
        max_seqs=budget.max_seqs,
        chunk_tokens=budget.chunk_tokens,
        page_tokens=budget.layout.page_tokens,
        kv_pages=sum(budget.layout.pages),
        vocab_size=model.spec.vocab_size,
        notes=(
            *dtypes.notes, *execution.notes, drafting.note, *budget.notes, kept,
            *_unused(model.weight_map, drafting.memory), *start.notes(budget),
        ),
        budget=tuple((line.name, line.bytes) for line in budget.lines),
    )


def _unused(weights: WeightMap, drafting: DrafterMemory) -> list[str]:
    """What the checkpoint holds and this engine does not load."""
    notes = [f"left out: {reason} ({counted(len(sources), 'tensor')})" for reason, sources in weights.left_out]
    head = f"not used: {len(weights.kept)} tensors of the multi-token head, which --speculate mtp drafts with"
    return notes + ([head] if weights.kept and drafting.method != "mtp" else [])
