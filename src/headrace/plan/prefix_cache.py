"""What an engine's prefix cache is told: what is worth keeping, and where states are."""

from __future__ import annotations

from headrace.cache.checkpoint_places import CheckpointPlaces
from headrace.cache.layout import CacheLayout
from headrace.cache.policy.flops_per_byte import flops_per_byte
from headrace.cache.prefix.settings import PrefixSettings
from headrace.config import EngineConfig
from headrace.models.spec import ModelSpec
from headrace.plan.dtypes import Dtypes, token_bytes
from headrace.plan.state_memory import state_bytes_per_sequence
from headrace.quantities import counted, exact_size

HOST_STATE_SHARE = 4
"""Of host memory, one part in so many is for states, of which a conversation has few, and the rest for pages."""
SPLIT_TOKENS = 256
"""The fewest that a state is kept for where two requests part, or that one waits for: computing them takes a few steps."""

BLOCK_BYTES, MOST_BLOCK_PAGES = 16 << 20, 16
"""A file of pages on SSD: large enough to be read in sequence, and no more of a prompt than is computed in a step."""


def prefix_settings(
    spec: ModelSpec, layout: CacheLayout, config: EngineConfig, dtypes: Dtypes, chunk_tokens: int
) -> tuple[PrefixSettings | None, str]:
    """(settings, a note on them); None where nothing can be kept, or is not to be. chunk_tokens: of a step, at most."""
    if config.prefix_cache == "off":
        return None, "prefix cache: off, as asked for"
    if not layout.groups:
        return None, "prefix cache: off, a model without attention has no pages to keep"
    sizes = [token_bytes(group, dtypes.kv) for group in layout.groups]
    pages = tuple(layout.page_tokens * size for size in sizes)
    state = state_bytes_per_sequence(spec, dtypes)
    if not state:
        host, more = host_layout(layout, config, sum(pages), 0)
        policy = flops_per_byte(spec, sum(sizes), 0)
        return PrefixSettings(policy, layout.page_tokens, page_bytes=pages, host=host), f"prefix cache: on{more}"
    if not layout.checkpoints:
        return None, f"prefix cache: off, the cache has no room for a state of {exact_size(state)} beside what must run"
    worth = -(-state // sum(sizes))
    split = min(SPLIT_TOKENS, worth)
    places = CheckpointPlaces(worth, split, chunk_tokens)
    host, more = host_layout(layout, config, sum(pages), state)
    settings = PrefixSettings(flops_per_byte(spec, sum(sizes), state), split, places, pages, state, host)
    return settings, f"prefix cache: on, with {counted(layout.checkpoints, 'state')}{more}"


def host_layout(layout: CacheLayout, config: EngineConfig, page_bytes: int, state_bytes: int) -> tuple[CacheLayout | None, str]:
    """(what ram_cache_bytes buys, the end of a note on it). page_bytes: of a page of every group together."""
    given = config.ram_cache_bytes
    if not given:
        return None, ""
    states = given // HOST_STATE_SHARE // state_bytes if state_bytes else 0
    pages = (given - states * state_bytes) // page_bytes
    if pages < 1 or (state_bytes and not states):
        return None, f"; nothing has room in {exact_size(given)} of host memory"
    more = f"; in host memory {counted(pages * layout.page_tokens, 'token')}"
    more += f" and {counted(states, 'state')}" if states else ""
    return CacheLayout(layout.groups, layout.page_tokens, (pages,) * len(layout.groups), 0, checkpoints=states), more


STAGED_STATES = 4
STAGED_SHARE = 4


def staging_bytes(spec: ModelSpec, layout: CacheLayout, config: EngineConfig, dtypes: Dtypes, ram_bytes: int) -> int:
    """Host memory on the way to the SSD and back, where none is asked for: a sequence of the whole cache, at most of the
    context that is asked for, with a few states; at most a quarter of what the machine has.
    """
    context = config.context or spec.max_context
    pages = min(max(layout.pages, default=0), -(-context // layout.page_tokens) + 1)
    tokens_bytes = pages * layout.page_tokens * sum(token_bytes(group, dtypes.kv) for group in layout.groups)
    state = state_bytes_per_sequence(spec, dtypes)
    if state:
        beside = -(-tokens_bytes * HOST_STATE_SHARE // (HOST_STATE_SHARE - 1))
        tokens_bytes = max(HOST_STATE_SHARE * STAGED_STATES * state, beside)
    return min(tokens_bytes, ram_bytes // STAGED_SHARE)


def block_pages(page_bytes: int) -> int:
    """Pages of a block on SSD. page_bytes: of a page of every group together."""
    return min(MOST_BLOCK_PAGES, max(1, -(-BLOCK_BYTES // page_bytes)))
