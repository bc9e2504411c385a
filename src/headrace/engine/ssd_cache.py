"""The SSD tier of an engine: its store, and what the entries of this engine are told by."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cache.layout import cache_groups
from headrace.cache.prefix.settings import PrefixSettings
from headrace.cache.ssd import SsdSettings as StoreSettings
from headrace.cache.ssd import SsdStore
from headrace.cache.ssd.directory import CacheDirectory
from headrace.cache.ssd.disk import Disk
from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.hardware import Hardware
from headrace.plan.checkpoint import Model
from headrace.plan.dtypes import Dtypes, token_bytes
from headrace.plan.fingerprint import cache_fingerprint, weights_digest
from headrace.plan.hf_directory import open_directory
from headrace.plan.own_drafter import drafter_folder
from headrace.plan.prefix_cache import block_pages
from headrace.scheduler.ssd_tier import SsdSettings

if TYPE_CHECKING:
    from headrace.runner.host_pools import HostPools


def check_store(config: EngineConfig, prefixes: PrefixSettings | None) -> None:
    """Raise ConfigError where the store could not be opened: weights need not be read to know that."""
    asked = _asked_for(config, prefixes)
    if asked is not None:
        CacheDirectory(asked.directory, Disk()).open()


def open_store(config: EngineConfig, prefixes: PrefixSettings | None) -> SsdStore | None:
    """The store in the directory that is asked for, if anything can be kept there. Raises ConfigError."""
    asked = _asked_for(config, prefixes)
    return None if asked is None else SsdStore(asked)


def _asked_for(config: EngineConfig, prefixes: PrefixSettings | None) -> StoreSettings | None:
    if not config.ssd_cache or prefixes is None:
        return None
    if prefixes.host is None:
        given = config.ram_cache_bytes
        raise ConfigError(f"ssd_cache: it needs host memory on the way, and ram_cache_bytes {given:,} are too few")
    largest = block_pages(sum(prefixes.page_bytes)) * sum(prefixes.page_bytes) + prefixes.checkpoint_bytes
    if config.ssd_cache_bytes < largest:
        raise ConfigError(f"ssd_cache_bytes: {config.ssd_cache_bytes:,} are fewer than the {largest:,} of one entry")
    return StoreSettings(Path(config.ssd_cache).absolute(), config.ssd_cache_bytes)


def ssd_note(config: EngineConfig, there_bytes: int | None) -> str:
    """What the directory has. there_bytes: of entries, of all models; None where nothing is kept, so that it is of no use."""
    if there_bytes is None:
        return f"ssd cache: {config.ssd_cache} is not used, since nothing is kept: the prefix cache is off"
    return f"ssd cache: {there_bytes:,} of {config.ssd_cache_bytes:,} bytes in {config.ssd_cache}"


def ssd_settings(
    store: SsdStore, pools: HostPools | None, model: Model, config: EngineConfig, dtypes: Dtypes, hardware: Hardware,
    prefixes: PrefixSettings,
) -> SsdSettings:
    """What the scheduler is told of it. Entries and their fingerprint are the model's alone, whatever drafts: whether there is
    a drafter may follow from the memory that is free at a start.
    """
    from headrace.runner.ssd_copies import SsdCopies

    assert pools is not None and prefixes.host is not None
    layout = replace(prefixes.host, groups=cache_groups(replace(model.spec, drafter=None)))
    block = block_pages(sum(layout.page_tokens * token_bytes(group, dtypes.kv) for group in layout.groups))
    weights = _random_digest(config, hardware) if config.random_weights else weights_digest(model.checkpoint)
    copies = SsdCopies(pools, store, _drafter_digest(model, config))
    return SsdSettings(copies, cache_fingerprint(weights, dtypes, layout, f"blocks of {block}"), block)


def _drafter_digest(model: Model, config: EngineConfig) -> bytes | None:
    """Of what a drafter adds to pages and states: its shape, and its weights where they are not in the model's files."""
    kept = model.spec.drafter
    if kept is None or not (kept.attention or kept.states):
        return None
    folder = None if kept.attention else drafter_folder(model, config)  # the multi-token head is in the model's files
    own = weights_digest(open_directory(folder, tokenizer=False)).hex() if folder else ""
    return hashlib.sha256(f"{kept} {own}".encode()).digest()


def _random_digest(config: EngineConfig, hardware: Hardware) -> bytes:
    """Random weights are the same on a device each time."""
    return hashlib.sha256(f"random {config.random_weights} on {hardware.name}".encode()).digest()
