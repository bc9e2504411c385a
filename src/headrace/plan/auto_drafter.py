"""What `--speculate auto` means: the drafter that a checkpoint brings along, wherever what was asked for, and room for ordinary
use, are left beside it. Every other setting is taken as it is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from headrace.cache.layout import CacheLayout
from headrace.config import EngineConfig
from headrace.errors import CheckpointError, ConfigError
from headrace.hardware import Hardware
from headrace.plan.budget import Budget, make_budget
from headrace.plan.checkpoint import Model
from headrace.plan.drafters import NO_DRAFTER, DrafterMemory
from headrace.plan.dtypes import Dtypes
from headrace.plan.execution import resolve_execution
from headrace.plan.extras import NONE, Extras
from headrace.plan.own_drafter import drafter_folder
from headrace.plan.speculation import DRAFT_SETTINGS, check_drafts, drafter_extras, drafter_for
from headrace.quantities import counted

LEAST_SEQS, LEAST_TOKENS = 4, 28_672
"""Of what nobody asked for, so much is left with a drafter, or as much as without one: room for a person with a few agents, and
for a document of 24,576 tokens with an answer of 4,096.
"""


@dataclass(frozen=True, slots=True)
class Drafting:
    """What an engine drafts with. why: of a choice that was made, a clause behind the method. broken: the checkpoint's drafter
    cannot be used, which is worth a warning.
    """

    memory: DrafterMemory
    why: str = ""
    broken: bool = False

    def asked_for(self, config: EngineConfig) -> EngineConfig:
        """The same settings, for an engine that drafts so without a choice of its own."""
        memory = self.memory
        if memory.method == "off":
            return replace(config, speculate="off", drafter=None)
        return replace(config, speculate=memory.method, draft_tokens=memory.drafts - memory.extended)

    @property
    def note(self) -> str:
        most = f", up to {counted(self.memory.drafts, 'draft')} of a sequence in a step"
        drafts = "" if self.memory.method == "off" else most
        return f"speculate: {self.memory.method}{drafts}{self.why and ': ' + self.why}"


OFF = Drafting(NO_DRAFTER)


def resolve_drafter(
    model: Model, config: EngineConfig, hardware: Hardware, dtypes: Dtypes, beside: Extras = NONE
) -> Drafting:
    """beside: what the engine holds beside decoder and drafter.

    Raises ConfigError for settings of drafts that are wrong for every drafter, or for the one that would be taken, whether it
    is taken or not; and what `drafter_for` raises for a drafter that was asked for.
    """
    check_drafts(model, config)
    if config.speculate != "auto":
        return Drafting(drafter_for(model, config, dtypes))
    method = "dflash" if drafter_folder(model, config) else "mtp" if model.weight_map.kept else None
    if method is None:
        return off(config, "the checkpoint brings no drafter; --speculate lookup takes drafts from the sequence itself")
    config = replace(config, speculate=method)
    try:
        usual = drafter_for(model, config, dtypes)
    except CheckpointError as error:
        return off(config, str(error), broken=True)
    if config.drafter:
        return Drafting(usual)
    if why := _in_the_way(model, config, hardware, dtypes):
        return off(config, why)
    return _affordable(_Engine(model, config, hardware, dtypes, beside), usual)


def off(config: EngineConfig, why: str, *, broken: bool = False) -> Drafting:
    """No drafter; settings of drafts have no effect then, which is told."""
    given = [f"--{name.replace('_', '-')}" for name in DRAFT_SETTINGS if getattr(config, name) is not None]
    unused = f"; {' and '.join(given)} {'has' if len(given) == 1 else 'have'} no effect" if given else ""
    return Drafting(NO_DRAFTER, why + unused, broken)


def _in_the_way(model: Model, config: EngineConfig, hardware: Hardware, dtypes: Dtypes) -> str:
    """Why the drafter is not used, memory apart; empty if it may be."""
    if config.random_weights:
        return "of random weights nobody can propose what they say"
    if any(name.endswith("_scale_inv") for name in model.weight_map.kept):
        return "the checkpoint's head is stored in blocks of fp8, which is planned and not served yet"
    execution = resolve_execution(config, hardware, dtypes.compute)
    if not execution.graphs or dtypes.compute not in ("float16", "bfloat16"):
        return "how many drafts pay is measured on captured steps of 16 bits, which there are none of here"
    return ""


@dataclass(frozen=True, slots=True)
class _Engine:
    """All that a budget depends on but the drafter."""

    model: Model
    config: EngineConfig
    hardware: Hardware
    dtypes: Dtypes
    beside: Extras

    def budget(self, memory: DrafterMemory) -> Budget:
        """Raises ConfigError if it does not fit."""
        return self._budget(self.config, memory)

    def holds_all(self, memory: DrafterMemory) -> bool:
        """Whether all sequences that are asked for can have the context that is asked for at once, if nothing else is kept."""
        config, (context, seqs) = self.config, (self.config.context, self.config.max_seqs)
        assert context and seqs
        if config.gpu_checkpoint_bytes is None:
            config = replace(config, gpu_checkpoint_bytes=0)
        try:
            layout = self._budget(config, memory).layout
        except ConfigError:
            return False
        return _full_pages(layout, math.inf) >= seqs * -(-context // layout.page_tokens)

    def _budget(self, config: EngineConfig, memory: DrafterMemory) -> Budget:
        model = self.model
        spec = replace(model.spec, drafter=memory.cache)
        extras = drafter_extras(model, config, self.dtypes, memory, self.beside)
        return make_budget(spec, model.weight_map, self.hardware, config, self.dtypes, memory.drafts, extras)

    def fewer(self, usual: DrafterMemory) -> Iterator[DrafterMemory]:
        """Half as many drafts, and half of those, where no number was asked for."""
        drafts = usual.drafts if self.config.draft_tokens is None and self.config.verify_tokens is None else 1
        while drafts > 1:
            drafts = -(-drafts // 2)
            yield drafter_for(self.model, replace(self.config, draft_tokens=drafts), self.dtypes)


def _affordable(engine: _Engine, usual: DrafterMemory) -> Drafting:
    """With as many drafts as leave what was asked for, and enough of the rest; without if none do."""
    config = engine.config
    try:
        without = engine.budget(NO_DRAFTER)
    except ConfigError:
        return off(config, "there is no room for what is asked for without a drafter either")
    all_at_once = bool(config.context and config.max_seqs) and engine.holds_all(NO_DRAFTER)
    first = ""
    for memory in (usual, *engine.fewer(usual)):
        missed = _missed(engine, memory, without, all_at_once=all_at_once)
        if not missed:
            return Drafting(memory, first and f"fewer than {usual.drafts}, with which {first}")
        first = first or missed
    return off(config, f"with {usual.method} {first}; --speculate {usual.method} has it nevertheless")


def _missed(engine: _Engine, memory: DrafterMemory, without: Budget, *, all_at_once: bool) -> str:
    """What a user would miss; empty if nothing. all_at_once: whether there is room for all that is asked for without drafts."""
    config = engine.config
    try:
        found = engine.budget(memory)
    except ConfigError as error:
        return f"it does not fit: {error}"
    if all_at_once and not engine.holds_all(memory):
        return f"{counted(config.max_seqs or 0, 'sequence')} of {counted(config.context or 0, 'token')} do not fit at once"
    if config.max_seqs is None and found.max_seqs < min(LEAST_SEQS, without.max_seqs):
        return f"the most sequences at once are {found.max_seqs} instead of {without.max_seqs}, fewer than {LEAST_SEQS}"
    pages = _full_pages(found.layout, math.inf)
    if config.max_seqs and pages < config.max_seqs <= _full_pages(without.layout, math.inf):
        return f"there are {counted(int(pages), 'page')} for {counted(config.max_seqs, 'sequence')}"
    has, had = _tokens(found), _tokens(without)
    if config.context is None and has < min(LEAST_TOKENS, had):
        return f"the cache holds {counted(has, 'token')} instead of {had:,}, fewer than {LEAST_TOKENS:,}"
    return ""


def _tokens(budget: Budget) -> int:
    """That the cache holds; as many as all sequences may have where no layer needs any pages."""
    most = budget.context * budget.max_seqs
    return int(min(most, _full_pages(budget.layout, most) * budget.layout.page_tokens))


def _full_pages(layout: CacheLayout, without: float) -> float:
    """Pages of full context, or `without` where no layer has that."""
    full = (count for group, count in zip(layout.groups, layout.pages, strict=True) if group.window is None)
    return min(full, default=without)
