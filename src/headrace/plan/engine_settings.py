"""Settings that no machine could serve a model with."""

from __future__ import annotations

from headrace.cache.layout import cache_groups
from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.models.spec import ModelSpec
from headrace.quantities import counted

MOST_SEQS = 65_536
"""At once: budgets go through numbers of rows, and no card holds the states of a tenth of these."""


def check_seqs(name: str, count: int | None) -> None:
    """Raise ConfigError for a number of sequences that no engine has. name: of the setting that it was given as."""
    if count is not None and not 1 <= count <= MOST_SEQS:
        raise ConfigError(f"{name} must be 1 or more, not {count:,}" if count < 1 else
                          f"{name} must be {MOST_SEQS:,} or fewer, not {count:,}")


def check_settings(spec: ModelSpec, config: EngineConfig) -> None:
    """Raise ConfigError for settings that no machine could serve this model with."""
    check_seqs("max_seqs", config.max_seqs)
    for name in ("context", "chunk_tokens", "page_tokens", "memory_bytes", "cache_bytes"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be 1 or more, not {value}")
    if config.memory_fraction is not None and not 0 < config.memory_fraction <= 1:
        raise ConfigError(f"memory_fraction must be above 0 and at most 1, not {config.memory_fraction}")
    given = [n for n in ("memory_bytes", "memory_fraction", "cache_bytes") if getattr(config, n) is not None]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other: give one")
    for name in ("gpu_checkpoint_bytes", "ram_cache_bytes", "cuda_context_bytes"):
        value = getattr(config, name)
        if value is not None and value < 0:
            raise ConfigError(f"{name} must be 0 or more, not {value}")
    _check_tiers(spec, config)
    if config.wait_for_gpu < 0:
        raise ConfigError(f"wait_for_gpu must be 0 or more, not {config.wait_for_gpu}")
    if config.context == 1:
        raise ConfigError("context must be 2 or more, not 1: a prompt and an answer of a token each")
    for name, tokens in (("context", config.context), ("page_tokens", config.page_tokens)):
        if tokens is not None and tokens > spec.max_context:
            raise ConfigError(f"{name} {tokens:,} is more than the model's own limit of {counted(spec.max_context, 'token')}")


def _check_tiers(spec: ModelSpec, config: EngineConfig) -> None:
    """Raise ConfigError for what cannot be kept beside the device."""
    if config.ssd_cache is not None and config.ssd_cache_bytes < 1:
        raise ConfigError(f"ssd_cache_bytes must be 1 or more, not {config.ssd_cache_bytes}")
    given = "ram_cache_bytes" if config.ram_cache_bytes else "ssd_cache" if config.ssd_cache is not None else None
    windows = [group.window for group in cache_groups(spec) if group.window is not None]
    if given and windows and config.prefix_cache == "on":
        raise ConfigError(
            f"{given}: {spec.model_type} has layers with a window of {counted(min(windows), 'token')}, whose pages are kept on "
            "the device alone: leave it out"
        )
