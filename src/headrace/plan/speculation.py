"""What an engine drafts with, by its settings, and what that takes beside the decoder."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from headrace.config import EngineConfig
from headrace.plan.checkpoint import Model
from headrace.plan.draft_memory import lookup_bytes
from headrace.plan.drafters import RING_TOKENS, DrafterMemory, Method, drafter_memory
from headrace.plan.dtypes import Dtypes
from headrace.plan.extras import Extras


def method_of(config: EngineConfig) -> Method:
    """auto is off so far."""
    return "off" if config.speculate == "auto" else cast(Method, config.speculate)


def drafter_for(model: Model, config: EngineConfig, dtypes: Dtypes) -> DrafterMemory:
    """Raises ConfigError for a drafter that there is not."""
    folder = Path(config.drafter) if config.drafter else None
    return drafter_memory(model, method_of(config), config.draft_tokens, folder, dtypes, config.context)


def drafter_extras(model: Model, config: EngineConfig, dtypes: Dtypes, drafter: DrafterMemory) -> Extras:
    """Lines and slots' bytes of the drafter."""
    slot_bytes = drafter.slot_bytes(model.spec.hidden, dtypes)
    why = f"{drafter.taps} hidden states of each token that waits to be taken in, {RING_TOKENS} at most"
    if drafter.method == "lookup":
        slot_bytes, why = lookup_bytes(looked_up(model, config)), "the sequence's tokens, to look drafts up in"
    return Extras(lines=drafter.lines, slot_bytes=slot_bytes, slot_why=why)


def looked_up(model: Model, config: EngineConfig) -> int:
    """Tokens of a sequence, for which lookup has room."""
    return config.context or model.spec.max_context
