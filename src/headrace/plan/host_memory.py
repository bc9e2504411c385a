"""Host memory for what requests computed, as it is asked for: whether a machine has it, and what it holds."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.cache.layout import CacheLayout
from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.plan.dtypes import Dtypes, token_bytes
from headrace.plan.prefix_cache import host_layout
from headrace.quantities import exact_size


def check_host_memory(config: EngineConfig, machine_bytes: int) -> None:
    """Raise ConfigError for more than the machine has."""
    asked = config.ram_cache_bytes
    if asked > machine_bytes:
        raise ConfigError(f"ram_cache_bytes: {exact_size(asked)} are more than this machine has, {exact_size(machine_bytes)}")


def host_note(
    layouts: Sequence[CacheLayout], config: EngineConfig, dtypes: Dtypes, state_bytes: int, machine_bytes: int
) -> str:
    """What is bought. layouts: of all cards. state_bytes: of a sequence on all of them. machine_bytes: of this machine, which
    need not be the one that is planned for.
    """
    page_bytes = sum(each.page_tokens * token_bytes(group, dtypes.kv) for each in layouts for group in each.groups)
    if config.prefix_cache == "off" or not page_bytes:
        bought = "; not used, since nothing is kept"
    else:
        _, bought = host_layout(layouts[0], config, page_bytes, state_bytes)
    asked = config.ram_cache_bytes
    more = f"; more than this machine has, {exact_size(machine_bytes)}" if asked > machine_bytes else ""
    return f"ram-cache-bytes: {exact_size(asked)}, none of the card's{bought}{more}"
