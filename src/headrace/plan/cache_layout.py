"""What the cache's bytes buy: slots, checkpoints, pages, and so the longest context."""

from __future__ import annotations

from collections.abc import Callable

from headrace.cache.layout import CacheLayout
from headrace.errors import ConfigError
from headrace.plan.cache_needs import CacheNeeds
from headrace.quantities import counted, exact_size

STATE_SHARE = 4
"""States of sequences that run take at most one part in this many of the cache, unless so many are asked for."""
CHECKPOINT_SHARE = 8
"""Checkpoints of states take at most one part in this many of the cache, unless told otherwise."""
LEAST_CHECKPOINTS = 8
"""So many are wanted however few sequences run: a conversation has some at its end, and there are others."""


def usual_seqs(needs: CacheNeeds, cache_bytes: int) -> tuple[int, str]:
    """(sequences, why no more): states take their share of the cache, or more where contexts are so short that all sequences
    can have theirs at once, or less where the context that is asked for needs the rest.
    """
    share = cache_bytes // STATE_SHARE // max(1, needs.state_bytes)
    spare = cache_bytes // CHECKPOINT_SHARE if needs.state_bytes and needs.config.prefix_cache == "on" else 0
    together = _as_many(cache_bytes - spare, lambda seqs: needs.full_bytes(needs.longest, seqs))
    beside = _as_many(cache_bytes, needs.least_bytes)
    if beside < max(share, together):
        return max(1, beside), f"the context of {counted(needs.config.context or 1, 'token')} has room beside their states"
    if share < together:
        return together, f"each can have {counted(needs.longest, 'token')} at once"
    return max(1, share), "states take at most a quarter of the cache"


def _as_many(room_bytes: int, needed: Callable[[int], int]) -> int:
    """Sequences, of which each needs as much more as the second."""
    return 1 + (room_bytes - needed(1)) // max(1, needed(2) - needed(1))


def buy(needs: CacheNeeds, cache_bytes: int, seqs: int, *, padding: bool) -> CacheLayout:
    """State slots first, then the pages that windows can ever need, checkpoints of states (unless they are asked for, no more
    than leave the context that is asked for, and a page for each of the sequences that are), and as many full-context pages as
    the rest has room for.
    """
    groups, config = needs.groups, needs.config
    left = cache_bytes - seqs * needs.state_bytes
    windows = {g.index: needs.pages(g, needs.longest, seqs) for g in groups if g.window is not None}
    left -= sum(count * needs.page_bytes(groups[index]) for index, count in windows.items())
    full_bytes = sum(needs.page_bytes(group) for group in groups if group.window is None)
    asked_bytes = max(seqs if config.max_seqs else 1, -(-(config.context or 1) // config.page_tokens)) * full_bytes
    checkpoints = _checkpoints(needs, cache_bytes, left - asked_bytes, seqs)
    left -= checkpoints * needs.state_bytes
    # A context that all sequences can have needs no more pages; groups of full context hold the same tokens.
    full = min(seqs * -(-needs.longest // config.page_tokens), max(0, left) // full_bytes) if full_bytes else 0
    pages = [(group.index, windows.get(group.index, full)) for group in groups]
    if left < 0 or any(count == 0 for _, count in pages):
        raise ConfigError(_too_small(needs, cache_bytes, seqs))
    counts = tuple(count for _, count in sorted(pages))
    return CacheLayout(groups, config.page_tokens, counts, seqs, padding, needs.drafts, checkpoints)


def _checkpoints(needs: CacheNeeds, cache_bytes: int, spare_bytes: int, seqs: int) -> int:
    """Of recurrent states: those asked for, or as many as sequences, in their share of the cache and what is spare of it."""
    if not needs.state_bytes or needs.config.prefix_cache == "off":
        return 0
    if needs.config.gpu_checkpoint_bytes is not None:
        return needs.checkpoints()
    most = min(cache_bytes // CHECKPOINT_SHARE, max(0, spare_bytes)) // needs.state_bytes
    return min(max(seqs, LEAST_CHECKPOINTS), most)


def _too_small(needs: CacheNeeds, cache_bytes: int, seqs: int) -> str:
    page, asked = sum(map(needs.page_bytes, needs.groups)), needs.checkpoints() * needs.state_bytes
    least = needs.least_bytes(seqs) - asked
    if asked and least <= cache_bytes:
        return (
            f"gpu_checkpoint_bytes: {exact_size(needs.config.gpu_checkpoint_bytes or 0)} are too many for a cache of "
            f"{exact_size(cache_bytes)}: what runs needs {exact_size(least)} of it, and {exact_size(cache_bytes - least)} are "
            "left"
        )
    return (
        f"the cache of {exact_size(cache_bytes)} is too small: {counted(seqs, 'state')} of {exact_size(needs.state_bytes)} and "
        f"pages of {exact_size(page)}; give it more (--cache-bytes, --memory-bytes) or have fewer sequences run at once"
    )


def context_of(needs: CacheNeeds, layout: CacheLayout, cache_bytes: int) -> tuple[int, str]:
    """(tokens of the longest sequence, a note on it). Raises ConfigError where more is asked for."""
    asked, longest = needs.config.context, needs.spec.max_context
    full = [count for group, count in zip(layout.groups, layout.pages, strict=True) if group.window is None]
    capacity = min((count * layout.page_tokens for count in full), default=longest)
    if asked is not None:
        if capacity < asked:
            raise ConfigError(
                f"the cache of {exact_size(cache_bytes)} holds {counted(capacity, 'token')}, fewer than the context of "
                f"{asked:,}; give it more (--cache-bytes, --memory-bytes) or ask for --context {capacity}"
            )
        return asked, f"context: {counted(asked, 'token')}, as asked for"
    if capacity < longest:
        return capacity, f"context: {counted(capacity, 'token')}, what the cache holds (the model allows {longest:,})"
    return longest, f"context: {counted(longest, 'token')}, the model's own limit"
