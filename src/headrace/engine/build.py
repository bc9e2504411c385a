"""From a checkpoint to an engine that is ready to step. Headers and settings are checked before torch is even imported."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.config import EngineConfig
from headrace.engine.core import EngineCore
from headrace.engine.description import describe
from headrace.engine.device_drafters import drafter_maker
from headrace.engine.model_source import find_model
from headrace.engine.shared_gpu import budget_beside_others
from headrace.engine.ssd_cache import check_store, open_store, ssd_note, ssd_settings
from headrace.engine.start import Start, planned_workspace
from headrace.engine.verify_fit import kernel_bytes, verify_fit
from headrace.errors import ConfigError
from headrace.gpu_processes import gpu_processes
from headrace.hardware import Hardware, detect, ram_bytes
from headrace.plan.auto_drafter import OFF, Drafting, resolve_drafter
from headrace.plan.budget import Budget, make_budget
from headrace.plan.checkpoint import Model
from headrace.plan.drafters import DrafterMemory
from headrace.plan.dtypes import Dtypes, resolve_dtypes
from headrace.plan.execution import resolve_execution
from headrace.plan.extras import Extras
from headrace.plan.host_memory import check_host_memory
from headrace.plan.prefix_cache import prefix_settings, staging_bytes
from headrace.plan.speculation import drafter_extras
from headrace.plan.workspace import SMALL_BYTES, SMALL_PIECE_BYTES
from headrace.quantities import exact_size
from headrace.scheduler.drafter import Drafter
from headrace.scheduler.scheduler import Scheduler
from headrace.speculate.pace import FixedPace, MeasuredPace, Pace
from headrace.types import EngineInfo, Request, SamplingParams

if TYPE_CHECKING:
    import torch

    from headrace.runner.runner import Runner
    from headrace.runner.sequence_masks import MakeMasks

Progress = Callable[[int, int], None]
_FIRST_ANSWER_TOKENS = 3


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine in this process, and what it turned out to be. For measurements: the runner that the core drives, and bytes
    of each part of the memory on a GPU, planned and taken.
    """

    core: EngineCore
    info: EngineInfo
    runner: Runner
    memory: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Drafted:
    """Who proposes drafts: one on the host, or one on the device that takes `memory`; and how many, if that is not measured."""

    host: Drafter | None
    memory: DrafterMemory
    pace: Pace | None


def load_engine(path: Path, config: EngineConfig, progress: Progress | None) -> BuiltEngine:
    """The engine of the checkpoint at `path`, which random weights need not have. Raises CheckpointError and ConfigError."""
    return build_engine(find_model(None if config.random_weights else path, config), config, progress)


def build_engine(
    model: Model, config: EngineConfig, progress: Progress | None, drafter: Drafter | None = None, pace: Pace | None = None,
    make_masks: MakeMasks | None = None,
) -> BuiltEngine:
    """Allocate all that the budget says and load or make the weights; progress(done_bytes, total_bytes) follows them.

    drafter: one on the host whose proposals rows carry, instead of what the settings say. pace: how many drafts rows have,
    instead of what is measured to be best. make_masks: of requests, which tokens they may draw. Raises ConfigError when the
    settings cannot work or the memory runs out, CheckpointError when weights cannot be read.
    """
    start = Start()
    check_host_memory(config, ram_bytes())
    look = partial(_look, config)
    hardware = look()
    start.lap("PyTorch and the device")
    dtypes = resolve_dtypes(config, hardware, model.checkpoint.dtype)
    make = partial(_settle, model, config, dtypes, drafter, Extras(masks=make_masks is not None))
    hardware, settled = budget_beside_others(look, make, partial(gpu_processes, hardware.uuid), config.wait_for_gpu)
    chosen, budget = settled.drafting, settled.budget
    if chosen.broken:
        logging.getLogger("headrace").warning("nothing is drafted: %s", chosen.why)
    _check_synthetic_acceptance(config, budget.layout.drafts, masks=make_masks is not None)
    model = replace(model, spec=replace(model.spec, drafter=chosen.memory.cache))
    if config.ssd_cache and not config.ram_cache_bytes:
        config = replace(config, ram_cache_bytes=staging_bytes(model.spec, budget.layout, config, dtypes, ram_bytes()))
    check_store(config, prefix_settings(model.spec, budget.layout, config, dtypes, budget.chunk_tokens)[0])
    try:
        drafted = Drafted(drafter, chosen.memory, pace)
        core, runner = _build_core(model, budget, dtypes, hardware, config, progress, drafted, start, make_masks)
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"out of memory, although the budget is {exact_size(budget.total_bytes)}: {reason}") from error
    info = describe(model, config, budget, dtypes, hardware, chosen, start)
    if config.ssd_cache:
        info = replace(info, notes=(*info.notes, ssd_note(config, core.stats().ssd_bytes if core.outlived else None)))
    return BuiltEngine(core, info, runner, start.memory(budget))


@dataclass(frozen=True, slots=True)
class _Settled:
    """What depends on the device's free memory."""

    drafting: Drafting
    budget: Budget


def _settle(
    model: Model, config: EngineConfig, dtypes: Dtypes, drafter: Drafter | None, beside: Extras, hardware: Hardware
) -> _Settled:
    """drafter: one on the host, instead of what the settings say. Raises ConfigError."""
    drafting = OFF if drafter else resolve_drafter(model, config, hardware, dtypes, beside)
    memory, spec = drafting.memory, replace(model.spec, drafter=drafting.memory.cache)
    drafts = drafter.most if drafter else memory.drafts
    extras = drafter_extras(model, config, dtypes, memory, beside)
    return _Settled(drafting, make_budget(spec, model.weight_map, hardware, config, dtypes, drafts, extras))


def _look(config: EngineConfig) -> Hardware:
    return detect(config.device).with_context(config.cuda_context_bytes)


def _check_synthetic_acceptance(config: EngineConfig, drafts: int, *, masks: bool) -> None:
    chance = config.synthetic_acceptance
    if chance is None:
        return
    if not 0 <= chance <= 1:
        raise ConfigError(f"synthetic_acceptance must be from 0 to 1, not {chance}")
    if not config.random_weights:
        raise ConfigError("--synthetic-acceptance is for --random-weights: a model's own drafts are accepted by what it says")
    if not drafts:
        raise ConfigError("--synthetic-acceptance: nothing is drafted; give --speculate as well")
    if masks:
        raise ConfigError("--synthetic-acceptance accepts drafts that masks do not allow")


def _build_core(
    model: Model, budget: Budget, dtypes: Dtypes, hardware: Hardware, config: EngineConfig, progress: Progress | None,
    drafted: Drafted, start: Start, make_masks: MakeMasks | None,
) -> tuple[EngineCore, Runner]:
    import torch

    from headrace.kernels.dispatch import runs_triton
    from headrace.kernels.late import expect_compiles, warn_of_compiles
    from headrace.loader import load_weights
    from headrace.models.decoder import build_decoder
    from headrace.random_weights import make_weights
    from headrace.runner.rehearsal import rehearse
    from headrace.runner.runner import Runner

    expect_compiles()
    place = torch.device(hardware.kind)
    if place.type == "cuda":
        gc.collect()  # what an engine before this one left behind is not to go while this one is measured
    others_bytes = torch.cuda.memory_allocated()
    decoder = build_decoder(model.spec, dtype=getattr(torch, dtypes.compute), device=place, formats=model.formats)
    if config.random_weights:
        make_weights(decoder)
    else:
        load_weights(model, decoder, progress)
    decoder.prepare()
    make_drafter = drafter_maker(model, config, budget, dtypes, drafted.memory, decoder)
    start.lap("weights")
    if runs_triton(decoder.embedding.weight):
        start.taken["weights"] = torch.cuda.memory_allocated() - others_bytes
        start.taken["workspace"] = rehearse(
            model.spec, decoder, budget.layout, dtypes, place, context=budget.context, chunk_tokens=budget.chunk_tokens,
            draws=drafted.memory.draws, masks=make_masks is not None,
        )
        torch.cuda.empty_cache()  # what stays is not to lie in what these prompts took
        start.lap("kernels and first prompts")
    execution = resolve_execution(config, hardware, dtypes.compute)
    prefixes, _ = prefix_settings(model.spec, budget.layout, config, dtypes, budget.chunk_tokens)
    store = open_store(config, prefixes)
    runner = Runner(
        model.spec, decoder, budget.layout, dtypes, place, context=budget.context, chunk_tokens=budget.chunk_tokens,
        graphs=execution.graphs, graphs_required=config.graphs == "on", host=prefixes.host if prefixes else None,
        make_drafter=make_drafter,
        synthetic_acceptance=config.synthetic_acceptance, make_masks=make_masks,
    )
    if start.taken:
        held, graphs = runner.held_bytes(), runner.graph_bytes
        start.taken["cache"] = sum(held.values()) - held["weights"]
        start.taken |= {"graphs": graphs["graphs_device"]} if graphs else {}
    start.lap("cache and graphs")
    if start.taken:
        _reserve(planned_workspace(budget), place)
        alone = Scheduler(budget.layout, chunk_tokens=budget.chunk_tokens, prefixes=prefixes)
        _serve_first(EngineCore(alone, runner, depth=execution.depth), budget)
        start.taken["kernel buffers"] = kernel_bytes(runner, others_bytes)
        start.lap("first requests")
    if config.verify_fit:
        start.fit = verify_fit(runner, budget, place, model.spec.vocab_size, others_bytes)
        start.lap("the largest steps")
    pace = drafted.pace or (_pace(runner, budget, start) if drafted.memory.drafts else None)
    ssd = ssd_settings(store, runner.host, model, config, dtypes, hardware, prefixes) if store and prefixes else None
    if store:
        start.lap("the SSD's index")
    scheduler = Scheduler(
        budget.layout, chunk_tokens=budget.chunk_tokens, drafter=drafted.host, prefixes=prefixes, memory=runner.host, ssd=ssd,
        pace=pace, prompts=runner.captured_prompts,
    )
    if start.taken:
        warn_of_compiles()
    return EngineCore(scheduler, runner, depth=execution.depth), runner


def _pace(runner: Runner, budget: Budget, start: Start) -> Pace:
    """As many drafts as pay, by what captured steps take; where none is captured, all that there are."""
    most = budget.layout.drafts
    costs = runner.step_costs(budget.context)
    start.lap("times of steps")
    return FixedPace(most, most) if costs is None else MeasuredPace(budget.layout.slots, most, costs)


def _reserve(workspace_bytes: int, place: torch.device) -> None:
    """Take a step's memory once: PyTorch's allocator keeps it, and takes no more later."""
    import torch

    large = torch.empty(workspace_bytes - SMALL_BYTES, dtype=torch.uint8, device=place)
    small = [torch.empty(SMALL_PIECE_BYTES, dtype=torch.uint8, device=place) for _ in range(SMALL_BYTES // SMALL_PIECE_BYTES)]
    del large, small


def _serve_first(core: EngineCore, budget: Budget) -> None:
    """Requests through everything that a user's first ones would be the first to use: the second begins like the first, and
    goes on from where that one's last token is. The core's scheduler is not to be used for others.
    """
    tokens = max(1, min(budget.chunk_tokens, budget.context - _FIRST_ANSWER_TOKENS))
    answer, params = min(_FIRST_ANSWER_TOKENS, budget.context - 1), SamplingParams(top_k=20, top_p=0.95)
    for last in (0, 1):
        prompt = (*(0,) * (tokens - 1), last)
        core.add(Request(f"first {last}", prompt, params, seed=0, max_tokens=answer, message_ends=(tokens - 1,)))
        while core.has_work:
            core.step()


def _is_out_of_memory(error: Exception) -> bool:
    """PyTorch raises OutOfMemoryError on a GPU, a plain RuntimeError of its allocator on a CPU, and mmap an OSError."""
    named = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    return named or isinstance(error, MemoryError) or (isinstance(error, OSError) and "Cannot allocate memory" in str(error))
