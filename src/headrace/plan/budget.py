"""Memory as arithmetic: what every part takes, in bytes, before anything is allocated. The engine allocates exactly this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.cache.layout import CacheLayout
from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.hardware import Hardware
from headrace.models.spec import ModelSpec, WeightMap
from headrace.plan.cache_layout import buy, context_of, usual_seqs
from headrace.plan.cache_lines import cache_lines, gathered_lines
from headrace.plan.cache_needs import CacheNeeds
from headrace.plan.dtypes import Dtypes
from headrace.plan.engine_settings import check_settings
from headrace.plan.execution import chunk_tokens, resolve_execution
from headrace.plan.extras import NONE, BudgetLine, Extras
from headrace.plan.fixed_lines import FixedLines
from headrace.plan.memory_limit import DEFAULT_MAX_SEQS, cache_limit
from headrace.plan.search import most
from headrace.quantities import exact_size


@dataclass(frozen=True, slots=True)
class Budget:
    """All lines, and what the cache lines buy. context: the longest sequence; chunk_tokens: of a step that computes prompts;
    notes: what was decided and why.
    """

    lines: tuple[BudgetLine, ...]
    layout: CacheLayout
    context: int
    max_seqs: int
    chunk_tokens: int
    notes: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        return sum(line.bytes for line in self.lines)


@dataclass(frozen=True, slots=True)
class _Sized:
    """An engine of so many sequences: lines of fixed size, the cache's bytes, and where they come from."""

    seqs: int
    fixed: tuple[BudgetLine, ...]
    cache_bytes: int
    source: str

    @property
    def note(self) -> str:
        return f"cache: {exact_size(self.cache_bytes)}, {self.source}"


def make_budget(
    spec: ModelSpec, weights: WeightMap, hardware: Hardware, config: EngineConfig, dtypes: Dtypes, drafts: int = 0,
    extras: Extras = NONE,
) -> Budget:
    """The budget of one engine whose rows carry at most `drafts`. Raises ConfigError, with the numbers, when it cannot fit."""
    check_settings(spec, config)
    chunk = chunk_tokens(config, hardware)
    graphs = resolve_execution(config, hardware, dtypes.compute).graphs
    needs = CacheNeeds(spec, replace(config, chunk_tokens=chunk), dtypes, drafts, extras)

    def sized(seqs: int) -> _Sized:
        fixed = FixedLines(needs, weights, hardware, seqs, graphs).all()
        return _Sized(seqs, fixed, *cache_limit(needs, hardware, sum(line.bytes for line in fixed)))

    chosen, notes = _sequences(needs, sized)
    layout = buy(needs, chosen.cache_bytes, chosen.seqs, padding=graphs or drafts > 0)
    context, note = context_of(needs, layout, chosen.cache_bytes)
    gathered = gathered_lines(spec, layout, dtypes, chosen.fixed) if hardware.kind == "cpu" else []
    lines = (*chosen.fixed, *gathered, *cache_lines(layout, dtypes, needs.state_bytes))
    budget = Budget(lines, layout, context, chosen.seqs, chunk, (*notes, note))
    _check_memory(budget, hardware)
    return budget


def _sequences(needs: CacheNeeds, sized: Callable[[int], _Sized]) -> tuple[_Sized, tuple[str, ...]]:
    """As many as are asked for, or the most, up to the usual number, whose cache has their share of states; notes on it."""
    if needs.config.max_seqs is not None:
        chosen = sized(needs.config.max_seqs)
        return chosen, (chosen.note,)
    tried: dict[int, _Sized] = {}

    def has_room(seqs: int) -> bool:
        try:
            tried[seqs] = sized(seqs)
        except ConfigError:
            return False
        return seqs <= usual_seqs(needs, tried[seqs].cache_bytes)[0]

    seqs = max(1, most(has_room, DEFAULT_MAX_SEQS))
    chosen = tried.get(seqs) or sized(seqs)
    if seqs == DEFAULT_MAX_SEQS:
        return chosen, (chosen.note,)
    _, why = usual_seqs(needs, chosen.cache_bytes)
    return chosen, (chosen.note, f"max-seqs: {seqs}, so that {why}; a state takes {exact_size(needs.state_bytes)}")


def with_least(budget: Budget, count: int, checkpoints: int, dtypes: Dtypes, state_bytes: int) -> Budget:
    """The same budget with fewer pages of full context and checkpoints, no more than so many: what the smallest of several
    cards has. state_bytes: of a sequence on this card.
    """
    layout = budget.layout
    pages = tuple(
        min(has, count) if group.window is None else has for group, has in zip(layout.groups, layout.pages, strict=True)
    )
    least = replace(layout, pages=pages, checkpoints=min(layout.checkpoints, checkpoints))
    old = {line.name for line in cache_lines(layout, dtypes, state_bytes)}
    full = any(group.window is None for group in layout.groups)
    context = min(budget.context, count * layout.page_tokens) if full else budget.context
    lines = (*(line for line in budget.lines if line.name not in old), *cache_lines(least, dtypes, state_bytes))
    return replace(budget, lines=lines, layout=least, context=context)


def _check_memory(budget: Budget, hardware: Hardware) -> None:
    """A CPU's cache is only taken as it is used, and what was asked for may never fit. A GPU's is taken at start."""
    has, whose = (hardware.free_bytes, "free") if hardware.kind == "cuda" else (hardware.memory_bytes, "")
    if budget.total_bytes > has:
        largest = max(budget.lines, key=lambda line: line.bytes)
        raise ConfigError(
            f"the engine would need {exact_size(budget.total_bytes)}, the {hardware.name if whose else 'machine'} has "
            f"{exact_size(has)}{whose and ' ' + whose}; most of it is {largest.name}, {exact_size(largest.bytes)}: "
            f"{largest.why}"
        )
