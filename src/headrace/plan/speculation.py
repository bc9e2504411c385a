"""What an engine drafts with, by its settings, and what that takes beside the decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.plan.checkpoint import Model
from headrace.plan.draft_memory import lookup_bytes
from headrace.plan.drafters import RING_TOKENS, DrafterMemory, Method, drafter_memory
from headrace.plan.dtypes import Dtypes
from headrace.plan.execution import FAST_CHUNK_TOKENS
from headrace.plan.extras import NONE, BudgetLine, Extras
from headrace.plan.memory_limit import DEFAULT_MAX_SEQS
from headrace.plan.own_drafter import drafter_folder
from headrace.plan.workspace import step_tokens
from headrace.quantities import counted
from headrace.types import MOST_DRAFTS

VOCABULARY_STEP = 128
"""Whole tiles of the model's head, however it is stored."""


DRAFT_SETTINGS = ("draft_tokens", "verify_tokens", "draft_vocabulary")
"""Of EngineConfig: how drafts are made. Without a drafter they have no effect."""


def check_drafts(model: Model, config: EngineConfig) -> None:
    """Raise ConfigError for settings of drafts that no drafter of this model could have."""
    drafts, verified, count = (getattr(config, name) for name in DRAFT_SETTINGS)
    for name, value in (("draft_tokens", drafts), ("verify_tokens", verified)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be 1 or more, not {value}; --speculate off drafts nothing")
        if value is not None and value > MOST_DRAFTS:
            raise ConfigError(f"{name} must be {MOST_DRAFTS} or less, not {value}: a row has a token more")
    if drafts is not None and verified is not None and verified < drafts:
        raise ConfigError(f"verify_tokens must be from {drafts}, which draft_tokens are, to {MOST_DRAFTS}, not {verified}")
    whole = model.spec.vocab_size
    if count is not None and (not 0 < count <= whole or count % VOCABULARY_STEP):
        raise ConfigError(f"draft_vocabulary must be a multiple of {VOCABULARY_STEP} up to {whole}, not {count}")


def drafter_for(model: Model, config: EngineConfig, dtypes: Dtypes) -> DrafterMemory:
    """What --speculate asks for, which is not auto (`plan.auto_drafter`). Raises ConfigError for a drafter that there is not,
    or settings that are not for it, and CheckpointError for one that does not fit.
    """
    check_drafts(model, config)
    method = cast(Method, config.speculate)
    folder = drafter_folder(model, config) if method == "dflash" or config.drafter else None
    memory = drafter_memory(model, method, config.draft_tokens, folder, dtypes, config.context)
    if method != "off" and method != "mtp" and config.draft_vocabulary is not None:
        raise ConfigError(f"draft_vocabulary {config.draft_vocabulary} is for --speculate mtp, not {method}")
    return memory if config.verify_tokens is None or method == "off" else _extended(memory, config.verify_tokens)


def _extended(memory: DrafterMemory, most: int) -> DrafterMemory:
    """With drafts of lookup behind the drafter's own, `most` of a row. Raises ConfigError where there is nothing to extend."""
    if memory.method == "lookup":
        raise ConfigError(f"verify_tokens {most} is for drafters that lookup extends, mtp and dflash, not {memory.method}")
    if not memory.drafts <= most <= MOST_DRAFTS:
        raise ConfigError(
            f"verify_tokens must be from {memory.drafts}, which are {memory.method}'s own, to {MOST_DRAFTS}, not {most}"
        )
    return replace(memory, drafts=most, extended=most - memory.drafts)


def drafter_extras(
    model: Model, config: EngineConfig, dtypes: Dtypes, drafter: DrafterMemory, beside: Extras = NONE
) -> Extras:
    """Lines and slots' bytes of the drafter, and what its graphs and the model's formats make of captured steps. beside: what
    the engine holds beside decoder and drafter, which is added: lines, masks, and whether there is one scale for all.
    """
    slot_bytes = drafter.slot_bytes(model.spec.hidden, dtypes)
    why = f"{counted(drafter.taps, 'hidden state')} of each token that waits to be taken in, {RING_TOKENS} at most"
    if drafter.method == "lookup" or drafter.extended:
        slot_bytes += lookup_bytes(looked_up(model, config))
        tokens_why = "the sequence's tokens, to look drafts up in"
        why = f"{why}; {tokens_why}" if drafter.taps else tokens_why
    tokens = step_tokens(
        config.chunk_tokens or FAST_CHUNK_TOKENS, config.max_seqs or DEFAULT_MAX_SEQS, drafter.drafts
    )
    step = drafter.step_bytes(tokens, model.spec.hidden, dtypes)
    work = f"hidden states behind {counted(drafter.taps, 'layer')}, of {counted(tokens, 'token')} of a step"
    lines = (*drafter.lines, *([BudgetLine("drafter workspace", step, work)] if step else []))
    return replace(
        beside, lines=(*beside.lines, *lines), slot_bytes=slot_bytes, slot_why=why, taps=drafter.taps,
        observes=drafter.observes, proposes=drafter.proposes,
        rounds_inputs=any(each.rounds_inputs for each in model.formats.values()),
    )


def looked_up(model: Model, config: EngineConfig) -> int:
    """Tokens of a sequence, for which lookup has room."""
    return config.context or model.spec.max_context
