"""Measure one step of the engine in this process, embedding to sampled token, beside its floor in bytes and FLOPs.

A step has --rows sequences with --query-tokens tokens each, --context tokens long; each may be given several times, and every
combination is measured. With one query token it is the engine's own loop, scheduler included, and rows may carry --drafts that
it verifies; with more, the same chunk again and again. Prompts are not computed: the cache holds random numbers.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.bench.engine_settings import EngineSettings
from headrace.cache.layout import cache_groups
from headrace.config import EngineConfig, setting
from headrace.engine.model_source import find_model
from headrace.errors import ConfigError
from headrace.hardware import detect
from headrace.plan.checkpoint import Model
from headrace.plan.dtypes import Dtypes, resolve_dtypes, token_bytes
from headrace.plan.state_memory import state_bytes_per_sequence
from headrace.types import MOST_DRAFTS

if TYPE_CHECKING:
    from headrace.bench.kernel_profile import Profile
    from headrace.bench.step_engine import MeasuredEngine, Steps
    from headrace.plan.floor import Ceilings

_Load = tuple[int, int, int, int]
"""Rows, query tokens, context, drafts."""
_WARM_UPS = 8
_KERNELS_SHOWN = 25


@dataclass(frozen=True, slots=True)
class Settings(EngineSettings):
    """Options of `headrace bench step`."""

    rows: tuple[int, ...] = setting((), "Sequences in a step; 1 if not given.", metavar="N")
    query_tokens: tuple[int, ...] = setting((), "Tokens of each of them; 1 if not given.", metavar="N")
    drafts: tuple[int, ...] = setting((), "Drafts behind each sequence's one query token; none if not given.", metavar="N")
    context: tuple[int, ...] = setting((), "Tokens that each is long, half-way through; 1024 if not given.", metavar="N")
    steps: int = setting(200, "Consecutive steps that are timed.", metavar="N")
    read_tb_per_s: float | None = setting(None, "Rate of reading for the floor; measured if not given.", metavar="X")
    matmul_tflops: float | None = setting(None, "Rate of matrix products for the floor; measured if not given.", metavar="X")
    profile: bool = setting(False, "Also print the time in each kernel, and the share with none running (GPU only).")


def run(settings: Settings, console: Console) -> dict[str, Any]:
    """See `bench.scenarios`. The results' `steps` has an entry for each combination."""
    import torch

    from headrace.bench.step_engine import MeasuredEngine

    loads = list(_loads(settings))
    hardware = detect(settings.device)
    if settings.profile and hardware.kind != "cuda":
        raise ConfigError("--profile needs a CUDA device")
    model = _model(settings)
    config = _engine_config(settings, loads, model.spec.max_context)
    dtypes = resolve_dtypes(config, hardware, model.checkpoint.dtype)
    ceilings = _ceilings(settings, torch.device(hardware.kind), dtypes)
    config = replace(config, cache_bytes=_cache_bytes(model, config, dtypes))
    began = time.perf_counter()
    engine = MeasuredEngine(model, config, max(load[3] for load in loads))
    ready_s = time.perf_counter() - began
    try:
        console.print(f"{engine.built.info.model} on {hardware.name}, {engine.built.info.dtype}; ready after {ready_s:.1f} s")
        for note in engine.built.info.notes:
            console.print(note)
        measured = [_measure(engine, settings, model, dtypes, ceilings, load, console) for load in loads]
        memory = _memory(engine)
        _print_memory(console, engine, memory)
    finally:
        engine.close()
    return {
        "model": engine.built.info.model, "dtypes": {"compute": dtypes.compute, "kv": dtypes.kv, "state": dtypes.state},
        "ready_s": ready_s, "ceilings": asdict(ceilings), "budget_bytes": dict(engine.built.info.budget),
        "memory": memory, "steps": measured,
    }


def _loads(settings: Settings) -> Iterator[_Load]:
    """Every combination. Raises ConfigError for one that cannot be."""
    if settings.steps < 1:
        raise ConfigError(f"--steps must be 1 or more, not {settings.steps}")
    if any(settings.drafts) and settings.query_tokens not in ((), (1,)):
        raise ConfigError("--drafts are verified behind one query token: leave out --query-tokens")
    for rows, tokens, context, drafts in itertools.product(
        settings.rows or (1,), settings.query_tokens or (1,), settings.context or (1024,), settings.drafts or (0,)
    ):
        for flag, value in (("--rows", rows), ("--query-tokens", tokens)):
            if value < 1:
                raise ConfigError(f"{flag} must be 1 or more, not {value}")
        if not 0 <= drafts <= MOST_DRAFTS:
            raise ConfigError(f"--drafts must be from 0 to {MOST_DRAFTS}, not {drafts}")
        if context < tokens + drafts:
            raise ConfigError(f"--context {context} is less than the {tokens + drafts} tokens of a row's step")
        yield rows, tokens, context, drafts


def _model(settings: Settings) -> Model:
    config = EngineConfig(random_weights=settings.random_weights)
    return find_model(settings.model, config)


def _engine_config(settings: Settings, loads: list[_Load], most_tokens: int) -> EngineConfig:
    """Room for the largest combination, and no more. Raises ConfigError where that is over most_tokens a sequence."""
    from headrace.bench.step_engine import SPARE_TOKENS

    context = max(context for _, _, context, _ in loads)
    longest = context + settings.steps + _WARM_UPS + SPARE_TOKENS
    if longest > most_tokens:
        raise ConfigError(
            f"--context {context} and --steps {settings.steps} need sequences of {longest} tokens, but the model's "
            f"own limit is {most_tokens}"
        )
    return EngineConfig(
        speculate="off", context=longest, max_seqs=max(rows for rows, _, _, _ in loads),
        chunk_tokens=max(rows * tokens for rows, tokens, _, _ in loads), **settings.engine(),
    )


def _cache_bytes(model: Model, config: EngineConfig, dtypes: Dtypes) -> int:
    assert config.context is not None and config.max_seqs is not None
    tokens = config.context + 3 * config.page_tokens  # the scheduler keeps a page free for every sequence
    kv = sum(token_bytes(group, dtypes.kv) for group in cache_groups(model.spec))
    return (config.max_seqs + 1) * (tokens * kv + state_bytes_per_sequence(model.spec, dtypes))


def _ceilings(settings: Settings, device: Any, dtypes: Dtypes) -> Ceilings:
    import torch

    from headrace.bench.ceilings import measure_ceilings
    from headrace.plan.floor import Ceilings

    read, product = settings.read_tb_per_s, settings.matmul_tflops
    if read and product:
        return Ceilings(read * 1e12, product * 1e12)
    found = measure_ceilings(device, getattr(torch, dtypes.compute))
    return Ceilings(read * 1e12 if read else found.bytes_per_s, product * 1e12 if product else found.flops_per_s)


def _measure(
    engine: MeasuredEngine, settings: Settings, model: Model, dtypes: Dtypes, ceilings: Ceilings,
    load: _Load, console: Console,
) -> dict[str, Any]:
    from headrace.plan.floor import Load, step_work

    rows, tokens, context, drafts = load
    steps = engine.steps(rows, tokens, context, settings.steps, drafts)
    tokens += drafts
    times = _times_s(steps, settings.steps)
    profiled = _profile(steps) if settings.profile else None
    steps.finish()
    weights = {name: p.numel() * p.element_size() for name, p in engine.runner.parameters().items()}
    work = step_work(model.spec, dtypes, weights, Load(rows, tokens, context, 1 + drafts))
    step_s, floor_s = sum(times) / len(times), ceilings.floor_s(work)
    found: dict[str, Any] = {
        "rows": rows, "query_tokens": tokens, "drafts": drafts, "context": context, "step_ms": step_s * 1e3,
        "p50_ms": statistics.median(times) * 1e3, "p95_ms": sorted(times)[len(times) * 95 // 100] * 1e3,
        "tokens_per_s": rows * tokens / step_s, "bytes": work.bytes, "flops": work.flops, "floor_ms": floor_s * 1e3,
        "ratio": step_s / floor_s,
    }
    kind = f"tokens, {drafts} of them drafts" if drafts else "tokens"
    console.print(
        f"rows {rows:4} x {tokens} {kind}, context {context}: {found['step_ms']:.3f} ms (p50 {found['p50_ms']:.3f}, p95 "
        f"{found['p95_ms']:.3f}), {found['tokens_per_s']:.0f} tokens/s; floor {found['floor_ms']:.3f} ms, "
        f"{found['ratio']:.2f} x"
    )
    if profiled is not None:
        found["profile"] = asdict(profiled)
        _print_profile(console, profiled, step_s * 1e6)
    return found


def _times_s(steps: Steps, count: int) -> list[float]:
    """Wall clock from one step's return to the next one's."""
    for _ in range(_WARM_UPS):
        steps.step()
    times = []
    before = time.perf_counter()
    for _ in range(count):
        steps.step()
        now = time.perf_counter()
        times.append(now - before)
        before = now
    return times


def _profile(steps: Steps) -> Profile:
    from headrace.bench.kernel_profile import profile_steps

    return profile_steps(steps.step)


def _print_profile(console: Console, found: Profile, step_us: float) -> None:
    caption = (
        f"busy {found.busy_us:.0f} us of a step of {step_us:.0f}: {1 - found.busy_us / step_us:.1%} idle; while profiled "
        f"{found.idle_share:.1%}, of which {found.between_share:.1%} between steps"
    )
    table = Table("kernel", "calls", "us", "share", caption=caption)
    for kernel in found.kernels[:_KERNELS_SHOWN]:
        table.add_row(escape(kernel.name[:90]), f"{kernel.calls:g}", f"{kernel.us:.1f}", f"{kernel.us / step_us:.1%}")
    console.print(table)
    if not found.complete:
        console.print("[yellow]the profiler lost launches, or steps differ: these figures are not a whole step's[/]")


def _print_memory(console: Console, engine: MeasuredEngine, memory: dict[str, int]) -> None:
    budget = dict(engine.built.info.budget)
    if memory:
        console.print(f"budget {sum(budget.values()):,} bytes; most allocated {memory['peak_allocated']:,}")
    if "graphs" in budget and memory:
        console.print(
            f"graphs: budget {budget['graphs']:,} bytes; took {memory.get('graphs_pool', 0):,} of PyTorch's memory, "
            f"{memory.get('graphs_device', 0):,} of the device's"
        )


def _memory(engine: MeasuredEngine) -> dict[str, int]:
    """What torch held at most, and what the graphs took, in bytes; nothing on a CPU."""
    import torch

    if engine.built.info.device != "cuda":
        return {}
    graphs = engine.runner.graph_bytes
    return {"peak_allocated": torch.cuda.max_memory_allocated(), "peak_reserved": torch.cuda.max_memory_reserved(), **graphs}
