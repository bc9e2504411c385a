"""How much memory an engine may take, and its cache of it."""

from __future__ import annotations

from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.hardware import Hardware
from headrace.plan.cache_layout import LEAST_CHECKPOINTS
from headrace.plan.cache_lines import gathered_share
from headrace.plan.cache_needs import CacheNeeds
from headrace.quantities import counted, exact_size

DEFAULT_MAX_SEQS = 64
DEFAULT_GPU_FRACTION = 0.97
"""Of a card. All that the engine takes is a line, within 1 % of what was measured, and nothing is taken after the start. What
is left is for a driver that takes more, on a card that nobody measured, and for programs beside the engine.
"""
CPU_CACHE_SHARE = 4
"""On a CPU the cache takes at most one part in this many of the RAM, unless told otherwise."""


def memory_limit(hardware: Hardware, config: EngineConfig) -> tuple[int | None, str]:
    """(bytes that an engine may take in all, why), of a CPU None where nothing is asked for."""
    if config.memory_bytes is not None:
        return config.memory_bytes, "memory_bytes"
    if config.memory_fraction is not None:
        return int(hardware.memory_bytes * config.memory_fraction), f"memory_fraction {config.memory_fraction:g}"
    if hardware.kind == "cpu":
        return None, ""
    free = hardware.free_bytes - (hardware.memory_bytes - int(hardware.memory_bytes * DEFAULT_GPU_FRACTION))
    return max(0, free), f"{DEFAULT_GPU_FRACTION:.0%} of the {hardware.name} less what others hold"


def reserve_why(config: EngineConfig) -> str:
    """What memory is for that the engine leaves."""
    if config.memory_bytes is not None:
        return "what memory_bytes leaves"
    if config.memory_fraction is not None:
        return f"what memory_fraction {config.memory_fraction:g} leaves"
    return f"{1 - DEFAULT_GPU_FRACTION:.0%} of the card, left to a driver that takes more and to other programs"


def cache_limit(needs: CacheNeeds, hardware: Hardware, fixed_bytes: int) -> tuple[int, str]:
    """(the cache's bytes beside `fixed_bytes`, where they come from)."""
    config = needs.config
    if config.cache_bytes is not None:
        return config.cache_bytes, "as asked for"
    limit, why = memory_limit(hardware, config)
    if limit is None:
        return _cpu_default(needs, hardware)
    if limit <= fixed_bytes:
        needed = f"the model needs {exact_size(fixed_bytes)} before its cache"
        raise ConfigError(f"{needed}, but it may use {exact_size(limit)}: {why}")
    left = limit - fixed_bytes
    return (int(left / (1 + gathered_share(needs))) if hardware.kind == "cpu" else left), f"what {why} leaves"


def _cpu_default(needs: CacheNeeds, hardware: Hardware) -> tuple[int, str]:
    seqs, context = needs.config.max_seqs or DEFAULT_MAX_SEQS, needs.longest
    wanted = needs.full_bytes(context, seqs)
    if needs.config.prefix_cache == "on" and needs.config.gpu_checkpoint_bytes is None:
        wanted += max(seqs, LEAST_CHECKPOINTS) * needs.state_bytes
    most = hardware.memory_bytes // CPU_CACHE_SHARE
    if wanted <= most:
        return wanted, f"which holds {counted(seqs, 'sequence')} of {counted(context, 'token')}"
    all_of_them = f"{counted(seqs, 'sequence')} of {counted(context, 'token')}"
    return most, f"a quarter of the RAM; {all_of_them} would need {exact_size(wanted)}"
