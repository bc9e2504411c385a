"""What `--speculate auto` means: the drafter that a checkpoint brings along, where it can only win and takes nothing that
anybody would miss. Every other setting is taken as it is given.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from headrace.config import EngineConfig
from headrace.errors import CheckpointError, ConfigError
from headrace.hardware import Hardware
from headrace.plan.budget import Budget, make_budget
from headrace.plan.checkpoint import Model
from headrace.plan.drafters import NO_DRAFTER, DrafterMemory
from headrace.plan.dtypes import Dtypes
from headrace.plan.execution import resolve_execution
from headrace.plan.mtp import mtp_head
from headrace.plan.own_drafter import drafter_folder
from headrace.plan.speculation import drafter_extras, drafter_for

LEAST_SHARE = 0.75
"""Of the tokens that the cache holds, and of the sequences that run at once, where nobody asked for a number: as many are left
with a drafter, or there is none."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """What an engine drafts with. why: of a choice that was made, a clause behind the method."""

    memory: DrafterMemory
    why: str = ""

    @property
    def note(self) -> str:
        drafts = "" if self.memory.method == "off" else f", up to {self.memory.drafts} drafts of a sequence in a step"
        return f"speculate: {self.memory.method}{drafts}{self.why and ': ' + self.why}"


OFF = Drafting(NO_DRAFTER)


def resolve_drafter(model: Model, config: EngineConfig, hardware: Hardware, dtypes: Dtypes) -> Drafting:
    """Raises ConfigError and CheckpointError for a drafter that was asked for and is not to be had (`drafter_for`)."""
    if config.speculate != "auto" or config.drafter:
        return Drafting(drafter_for(model, config, dtypes))
    method = "dflash" if drafter_folder(model, config) else "mtp" if model.weight_map.kept else None
    off = replace(config, speculate="off")
    if method is None:
        why = "the checkpoint brings no drafter; --speculate lookup takes drafts from the sequence itself"
        return Drafting(drafter_for(model, off, dtypes), why)
    if why := _in_the_way(model, config, hardware, dtypes):
        return Drafting(drafter_for(model, off, dtypes), why)
    try:
        if method == "mtp":
            mtp_head(model)
        return _affordable(model, replace(config, speculate=method), hardware, dtypes)
    except (CheckpointError, ConfigError) as error:
        logging.getLogger("headrace").warning("nothing is drafted: %s", error)
        return Drafting(NO_DRAFTER, str(error))


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


def _affordable(model: Model, config: EngineConfig, hardware: Hardware, dtypes: Dtypes) -> Drafting:
    """With as many drafts as leave what was asked for, and enough of the rest; without if none do."""
    usual = drafter_for(model, config, dtypes)
    try:
        without = _budget(model, config, hardware, dtypes, NO_DRAFTER)
    except ConfigError:  # nothing fits: the engine says why
        return OFF
    first = ""
    for memory in (usual, *_fewer(model, config, dtypes, usual)):
        missed = _missed(model, config, hardware, dtypes, memory, without)
        if not missed:
            return Drafting(memory, first and f"fewer than {usual.drafts}, with which {first}")
        first = first or missed
    return Drafting(NO_DRAFTER, f"with {usual.method} {first}; --speculate {usual.method} has it nevertheless")


def _fewer(model: Model, config: EngineConfig, dtypes: Dtypes, usual: DrafterMemory) -> Iterator[DrafterMemory]:
    """Half as many drafts, and half of those, where no number was asked for."""
    drafts = usual.drafts if config.draft_tokens is None and config.verify_tokens is None else 1
    while drafts > 1:
        drafts = -(-drafts // 2)
        yield drafter_for(model, replace(config, draft_tokens=drafts), dtypes)


def _missed(
    model: Model, config: EngineConfig, hardware: Hardware, dtypes: Dtypes, memory: DrafterMemory, without: Budget
) -> str:
    """What a user would miss; empty if nothing."""
    try:
        found = _budget(model, config, hardware, dtypes, memory)
    except ConfigError as error:
        return f"it does not fit: {error}"
    if config.max_seqs is None and found.max_seqs < LEAST_SHARE * without.max_seqs:
        return f"{found.max_seqs} sequences run at once instead of {without.max_seqs}"
    has, had = _tokens(found), _tokens(without)
    asked = config.context * config.max_seqs if config.context and config.max_seqs else None
    if has < min(had, LEAST_SHARE * had if asked is None else asked):
        return f"the cache holds {has:,} tokens instead of {had:,}"
    return ""


def _tokens(budget: Budget) -> int:
    """That the pages of full context hold; as many as all sequences may have where no layer needs any."""
    layout, most = budget.layout, budget.context * budget.max_seqs
    full = [count for group, count in zip(layout.groups, layout.pages, strict=True) if group.window is None]
    return min(most, min(full) * layout.page_tokens) if full else most


def _budget(model: Model, config: EngineConfig, hardware: Hardware, dtypes: Dtypes, memory: DrafterMemory) -> Budget:
    spec, extras = replace(model.spec, drafter=memory.cache), drafter_extras(model, config, dtypes, memory)
    return make_budget(spec, model.weight_map, hardware, config, dtypes, memory.drafts, extras)
