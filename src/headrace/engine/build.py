"""From a checkpoint to an engine that is ready to step. Headers and settings are checked before torch is even imported."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.config import EngineConfig
from headrace.engine.core import EngineCore
from headrace.engine.model_source import find_model
from headrace.errors import ConfigError
from headrace.hardware import Hardware, detect
from headrace.models.spec import WeightMap
from headrace.plan.budget import Budget, make_budget
from headrace.plan.checkpoint import Model
from headrace.plan.dtypes import Dtypes, resolve_dtypes
from headrace.plan.execution import resolve_execution
from headrace.scheduler.drafter import Drafter
from headrace.scheduler.scheduler import Scheduler
from headrace.types import EngineInfo

if TYPE_CHECKING:
    from headrace.runner.runner import Runner

Progress = Callable[[int, int], None]


class _Stopwatch:
    """How long each part of the start took."""

    def __init__(self) -> None:
        self._laps: list[str] = []
        self._since = time.perf_counter()

    def lap(self, part: str) -> None:
        """`part` is what was done since the last call."""
        now = time.perf_counter()
        self._laps.append(f"{part} {now - self._since:.1f} s")
        self._since = now

    def note(self) -> str:
        return f"start: {', '.join(self._laps)}"


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine in this process, and what it turned out to be. runner: what the core drives, for measurements."""

    core: EngineCore
    info: EngineInfo
    runner: Runner


def load_engine(path: Path, config: EngineConfig, progress: Progress | None) -> BuiltEngine:
    """The engine of the checkpoint at `path`, which random weights need not have. Raises CheckpointError and ConfigError."""
    return build_engine(find_model(None if config.random_weights else path, config), config, progress)


def build_engine(
    model: Model, config: EngineConfig, progress: Progress | None, drafter: Drafter | None = None
) -> BuiltEngine:
    """Allocate all that the budget says and load or make the weights; progress(done_bytes, total_bytes) follows them.

    drafter: whose proposals the engine's rows carry. Raises ConfigError when the settings cannot work or the memory runs out, CheckpointError when weights cannot be read.
    """
    watch = _Stopwatch()
    hardware = detect(config.device)
    watch.lap("PyTorch and the device")
    dtypes = resolve_dtypes(config, hardware, model.checkpoint.dtype)
    budget = make_budget(model.spec, model.weight_map, hardware, config, dtypes, drafter.most if drafter else 0)
    try:
        core, runner = _build_core(model, budget, dtypes, hardware, config, progress, drafter, watch.lap)
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"out of memory, although the budget is {budget.total_bytes:,} bytes: {reason}") from error
    return BuiltEngine(core, _describe(model, config, budget, dtypes, hardware, runner, watch.note()), runner)


def _build_core(
    model: Model, budget: Budget, dtypes: Dtypes, hardware: Hardware, config: EngineConfig, progress: Progress | None,
    drafter: Drafter | None, lap: Callable[[str], None],
) -> tuple[EngineCore, Runner]:
    import torch

    from headrace.kernels.dispatch import runs_triton
    from headrace.loader import load_weights
    from headrace.models.decoder import build_decoder
    from headrace.random_weights import make_weights
    from headrace.runner.rehearsal import rehearse
    from headrace.runner.runner import Runner

    place = torch.device(hardware.kind)
    decoder = build_decoder(model.spec, dtype=getattr(torch, dtypes.compute), device=place, formats=model.formats)
    if config.random_weights:
        make_weights(decoder)
    else:
        load_weights(model, decoder, progress)
    decoder.prepare()
    lap("weights")
    if runs_triton(decoder.embedding.weight):
        rehearse(
            model.spec, decoder, budget.layout, dtypes, place, context=budget.context, chunk_tokens=config.chunk_tokens
        )
        lap("kernels and a first prompt")
    execution = resolve_execution(config, hardware, dtypes.compute)
    runner = Runner(
        model.spec, decoder, budget.layout, dtypes, place, context=budget.context, chunk_tokens=config.chunk_tokens,
        graphs=execution.graphs, graphs_required=config.graphs == "on",
    )
    lap("cache and graphs")
    scheduler = Scheduler(budget.layout, chunk_tokens=config.chunk_tokens, drafter=drafter)
    return EngineCore(scheduler, runner, depth=execution.depth), runner


def _is_out_of_memory(error: Exception) -> bool:
    """PyTorch raises OutOfMemoryError on a GPU, a plain RuntimeError of its allocator on a CPU, and mmap an OSError."""
    named = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    return named or isinstance(error, MemoryError) or (isinstance(error, OSError) and "Cannot allocate memory" in str(error))


def _describe(
    model: Model, config: EngineConfig, budget: Budget, dtypes: Dtypes, hardware: Hardware, runner: Runner, took: str
) -> EngineInfo:
    execution = resolve_execution(config, hardware, dtypes.compute)
    return EngineInfo(
        model=f"{config.random_weights}, random" if config.random_weights else os.path.abspath(model.checkpoint.path),
        device=hardware.kind,
        dtype=dtypes.compute,
        context=budget.context,
        max_seqs=budget.max_seqs,
        chunk_tokens=config.chunk_tokens,
        page_tokens=budget.layout.page_tokens,
        kv_pages=sum(budget.layout.pages),
        vocab_size=model.spec.vocab_size,
        notes=(*dtypes.notes, *execution.notes, *_captured(runner), *budget.notes, *_unused(model.weight_map), took),
        budget=tuple((line.name, line.bytes) for line in budget.lines),
    )


def _captured(runner: Runner) -> list[str]:
    taken = runner.graph_bytes
    return [f"graphs took {taken['graphs_device']:,} bytes"] if taken else []


def _unused(weights: WeightMap) -> list[str]:
    """What the checkpoint holds and this engine does not load."""
    notes = [f"left out: {reason} ({len(sources)} tensors)" for reason, sources in weights.left_out]
    return notes + ([f"not used yet: {len(weights.kept)} tensors kept for drafting"] if weights.kept else [])
