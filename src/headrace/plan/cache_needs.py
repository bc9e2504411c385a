"""What sequences need of a cache: pages and states, in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from headrace.cache.layout import CacheGroup
from headrace.config import EngineConfig
from headrace.models.spec import ModelSpec
from headrace.plan.dtypes import Dtypes, token_bytes
from headrace.plan.extras import NONE, Extras
from headrace.plan.state_memory import state_bytes_per_sequence

MOST_DEPTH = 2
"""Uncommitted plans that the loop holds at most, see plan.execution."""


@dataclass(frozen=True)
class CacheNeeds:
    """A model's, with rows of at most `drafts`. config.chunk_tokens must be given. No slots: what is summed over all layers is
    remembered, since searches ask for it hundreds of times.
    """

    spec: ModelSpec
    config: EngineConfig
    dtypes: Dtypes
    drafts: int = 0
    extras: Extras = NONE

    @cached_property
    def groups(self) -> tuple[CacheGroup, ...]:
        return self.extras.all_groups(self.spec)

    @property
    def longest(self) -> int:
        """Tokens of the context that is asked for, or of the model's own."""
        return self.config.context or self.spec.max_context

    @cached_property
    def state_bytes(self) -> int:
        return state_bytes_per_sequence(self.spec, self.dtypes)

    def page_bytes(self, group: CacheGroup) -> int:
        return self.config.page_tokens * token_bytes(group, self.dtypes.kv)

    def pages(self, group: CacheGroup, context: int, seqs: int) -> int:
        """Pages that `seqs` sequences of `context` tokens hold at most."""
        page, chunk = self.config.page_tokens, self.config.chunk_tokens
        assert chunk is not None
        if group.window is None:
            return seqs * -(-context // page)
        # A window rarely starts on a page's first token, and the drafts of uncommitted steps may all be accepted or none.
        kept = min(context, group.window + page + MOST_DEPTH * self.drafts)
        return seqs * (-(-kept // page) + 1) + -(-min(context, chunk) // page)

    def checkpoints(self) -> int:
        """Of states, those that are asked for."""
        state = self.state_bytes
        return (self.config.gpu_checkpoint_bytes or 0) // state if state and self.config.prefix_cache == "on" else 0

    def full_bytes(self, context: int, seqs: int) -> int:
        """Of a cache that holds `seqs` sequences of `context` tokens at once, and the checkpoints that are asked for."""
        pages = sum(self.pages(group, context, seqs) * self.page_bytes(group) for group in self.groups)
        return (seqs + self.checkpoints()) * self.state_bytes + pages

    def least_bytes(self, seqs: int) -> int:
        """Of a cache of so many sequences of which one can have the context that is asked for."""
        windows = [group for group in self.groups if group.window is not None]
        more = ((self.pages(g, self.longest, seqs) - self.pages(g, self.longest, 1)) * self.page_bytes(g) for g in windows)
        return self.full_bytes(self.config.context or 1, 1) + (seqs - 1) * self.state_bytes + sum(more)
