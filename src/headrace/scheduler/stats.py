"""What the cache has and does, as the engine's statistics tell it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.cache.prefix.cache import PrefixCache
from headrace.cache.prefix.miss import Miss
from headrace.cache.prefix.settings import PrefixSettings
from headrace.scheduler.host_tier import HostTier
from headrace.scheduler.prefixes import Prefixes
from headrace.scheduler.ssd_tier import SsdTier
from headrace.types import EngineStats


def with_cache(stats: EngineStats, prefixes: Prefixes) -> EngineStats:
    """The same, with pages, states and what is kept of them."""
    cache, settings, hits = prefixes.cache, prefixes.settings, prefixes.hits
    pools, unread, slots = cache.pools, sum(cache.unread_pages), cache.checkpoint_slots
    found = replace(
        stats,
        kv_pages_used=sum(pool.total - pool.free for pool in pools) - unread,
        kv_pages_total=sum(pool.total for pool in pools),
        kv_pages_cached=unread,
        kv_cached_bytes=_page_bytes(cache, settings),
        checkpoints_used=slots.total - slots.free,
        checkpoints_total=slots.total,
        checkpoint_bytes=_checkpoint_bytes(cache, settings),
        prefix_hits_total=hits.total,
        prefix_misses=_by_name(hits.misses),
        prefix_short=_by_name(hits.short),
        ssd_hits_total=hits.ssd,
    )
    return _with_host(found, prefixes.host, settings) if prefixes.host else found


def _with_host(stats: EngineStats, host: HostTier, settings: PrefixSettings) -> EngineStats:
    found = replace(
        stats,
        host_pages_bytes=_page_bytes(host.cache, settings),
        host_checkpoint_bytes=_checkpoint_bytes(host.cache, settings),
        restores_total=host.restores,
        restore_times=tuple(each.read() for each in (host.times, host.ssd and host.ssd.times) if each),
    )
    return _with_ssd(found, host.ssd) if host.ssd else found


def _with_ssd(stats: EngineStats, tier: SsdTier) -> EngineStats:
    ssd = tier.stats()
    return replace(
        stats,
        ssd_bytes=ssd.total_bytes,
        ssd_waiting=tier.waiting,
        ssd_misses=tuple(ssd.misses.items()),
        ssd_dropped=tuple(ssd.dropped.items()),
        ssd_read_bytes_total=ssd.read_bytes,
        ssd_written_bytes_total=ssd.written_bytes,
    )


def _page_bytes(cache: PrefixCache, settings: PrefixSettings) -> int:
    """Of pages that are kept and that no running sequence reads."""
    return sum(pages * size for pages, size in zip(cache.unread_pages, settings.page_bytes, strict=False))


def _checkpoint_bytes(cache: PrefixCache, settings: PrefixSettings) -> int:
    return (cache.checkpoint_slots.total - cache.checkpoint_slots.free) * settings.checkpoint_bytes


def _by_name(counts: Mapping[Miss, int]) -> tuple[tuple[str, int], ...]:
    return tuple((miss.name.lower(), count) for miss, count in counts.items())
