"""What an engine drafts with, by its settings, and what that takes beside the decoder."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import cast

from headrace.config import EngineConfig
from headrace.errors import CheckpointError, ConfigError
from headrace.plan.checkpoint import Model
from headrace.plan.draft_memory import lookup_bytes
from headrace.plan.drafters import NO_DRAFTER, RING_TOKENS, DrafterMemory, Method, drafter_memory
from headrace.plan.dtypes import Dtypes
from headrace.plan.execution import FAST_CHUNK_TOKENS
from headrace.plan.extras import BudgetLine, Extras
from headrace.plan.memory_limit import DEFAULT_MAX_SEQS
from headrace.plan.own_drafter import drafter_folder
from headrace.plan.workspace import step_tokens
from headrace.types import MOST_DRAFTS

VOCABULARY_STEP = 128
"""Whole tiles of the model's head, however it is stored."""


def method_of(config: EngineConfig) -> Method:
    """auto is off, but where a drafter is given; `plan.auto_drafter` makes more of it."""
    if config.speculate == "auto" and config.drafter:
        return "dflash"
    return "off" if config.speculate == "auto" else cast(Method, config.speculate)


def drafter_for(model: Model, config: EngineConfig, dtypes: Dtypes) -> DrafterMemory:
    """Raises ConfigError for a drafter that there is not, and CheckpointError for one that does not fit, where it is asked for;
    with auto there is none then, and a warning.
    """
    _check_vocabulary(model, config)
    method = method_of(config)
    folder = drafter_folder(model, config) if method == "dflash" or config.drafter else None
    try:
        memory = drafter_memory(model, method, config.draft_tokens, folder, dtypes, config.context)
    except (CheckpointError, ConfigError) as error:
        if config.speculate != "auto":
            raise
        logging.getLogger("headrace").warning("nothing is drafted: %s", error)
        return NO_DRAFTER
    return memory if config.verify_tokens is None else _extended(memory, config.verify_tokens)


def _extended(memory: DrafterMemory, most: int) -> DrafterMemory:
    """With drafts of lookup behind the drafter's own, `most` of a row. Raises ConfigError where there is nothing to extend."""
    if memory.method in ("off", "lookup"):
        raise ConfigError(f"verify_tokens {most} is for drafters that lookup extends, mtp and dflash, not {memory.method}")
    if not memory.drafts <= most <= MOST_DRAFTS:
        raise ConfigError(
            f"verify_tokens must be from {memory.drafts}, which are {memory.method}'s own, to {MOST_DRAFTS}, not {most}"
        )
    return replace(memory, drafts=most, extended=most - memory.drafts)


def _check_vocabulary(model: Model, config: EngineConfig) -> None:
    """Raise ConfigError for tokens that cannot be drafted from."""
    count, whole = config.draft_vocabulary, model.spec.vocab_size
    if count is None:
        return
    if method_of(config) != "mtp":
        raise ConfigError(f"draft_vocabulary {count} is for --speculate mtp, not {method_of(config)}")
    if not 0 < count <= whole or count % VOCABULARY_STEP:
        raise ConfigError(f"draft_vocabulary must be a multiple of {VOCABULARY_STEP} up to {whole}, not {count}")


def drafter_extras(model: Model, config: EngineConfig, dtypes: Dtypes, drafter: DrafterMemory) -> Extras:
    """Lines and slots' bytes of the drafter, and what its graphs and the model's formats make of captured steps."""
    slot_bytes = drafter.slot_bytes(model.spec.hidden, dtypes)
    why = f"{drafter.taps} hidden states of each token that waits to be taken in, {RING_TOKENS} at most"
    if drafter.method == "lookup" or drafter.extended:
        slot_bytes += lookup_bytes(looked_up(model, config))
        tokens_why = "the sequence's tokens, to look drafts up in"
        why = f"{why}; {tokens_why}" if drafter.taps else tokens_why
    tokens = step_tokens(
        config.chunk_tokens or FAST_CHUNK_TOKENS, config.max_seqs or DEFAULT_MAX_SEQS, drafter.drafts
    )
    step = drafter.step_bytes(tokens, model.spec.hidden, dtypes)
    work = f"hidden states behind {drafter.taps} layers, of {tokens} tokens of a step"
    lines = (*drafter.lines, *([BudgetLine("drafter workspace", step, work)] if step else []))
    return Extras(
        lines=lines, slot_bytes=slot_bytes, slot_why=why, taps=drafter.taps, observes=drafter.observes,
        proposes=drafter.proposes, rounds_inputs=any(each.rounds_inputs for each in model.formats.values()),
    )


def looked_up(model: Model, config: EngineConfig) -> int:
    """Tokens of a sequence, for which lookup has room."""
    return config.context or model.spec.max_context
