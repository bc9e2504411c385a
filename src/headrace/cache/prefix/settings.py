"""What an engine's prefix cache is told at its start."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.cache.checkpoint_places import CheckpointPlaces
from headrace.cache.layout import CacheLayout
from headrace.cache.policy.flops_per_byte import FlopsPerByte


@dataclass(frozen=True, slots=True)
class PrefixSettings:
    """policy: what is worth keeping. split_tokens: the fewest tokens that are worth waiting for while another request computes
    them. places: where states are kept, None for a model that can be resumed at any token. page_bytes: of a page of each cache
    group. checkpoint_bytes: of one state. host: pages and checkpoints of host memory, None without.
    """

    policy: FlopsPerByte
    split_tokens: int
    places: CheckpointPlaces | None = None
    page_bytes: tuple[int, ...] = ()
    checkpoint_bytes: int = 0
    host: CacheLayout | None = None
