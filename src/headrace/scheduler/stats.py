"""What the cache has and does, as the engine's statistics tell it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.cache.prefix.miss import Miss
from headrace.scheduler.prefixes import Prefixes
from headrace.types import EngineStats


def with_cache(stats: EngineStats, prefixes: Prefixes) -> EngineStats:
    """The same, with pages, states and what is kept of them."""
    checkpoints_used, checkpoints_total, checkpoint_bytes = prefixes.checkpoints
    return replace(
        _with_tiers(stats, prefixes),
        kv_pages_used=prefixes.pages_used,
        kv_pages_total=prefixes.pages_total,
        kv_pages_cached=sum(prefixes.pages_cached),
        kv_cached_bytes=prefixes.cached_bytes,
        checkpoints_used=checkpoints_used,
        checkpoints_total=checkpoints_total,
        checkpoint_bytes=checkpoint_bytes,
        prefix_hits_total=prefixes.hits.total,
        prefix_misses=_by_name(prefixes.hits.misses),
        prefix_short=_by_name(prefixes.hits.short),
    )


def _with_tiers(stats: EngineStats, prefixes: Prefixes) -> EngineStats:
    """With host memory and the SSD."""
    host_pages_bytes, host_checkpoint_bytes = prefixes.host_bytes
    ssd = prefixes.ssd
    return replace(
        stats,
        host_pages_bytes=host_pages_bytes,
        host_checkpoint_bytes=host_checkpoint_bytes,
        restores_total=prefixes.restores,
        restore_times=prefixes.restore_times,
        ssd_bytes=ssd.total_bytes if ssd else 0,
        ssd_waiting=prefixes.ssd_waiting,
        ssd_hits_total=prefixes.hits.ssd,
        ssd_misses=tuple(ssd.misses.items()) if ssd else (),
        ssd_dropped=tuple(ssd.dropped.items()) if ssd else (),
        ssd_read_bytes_total=ssd.read_bytes if ssd else 0,
        ssd_written_bytes_total=ssd.written_bytes if ssd else 0,
    )


def _by_name(counts: Mapping[Miss, int]) -> tuple[tuple[str, int], ...]:
    return tuple((miss.name.lower(), count) for miss, count in counts.items())
