"""Lines of a budget, and what an engine holds beside its decoder: a drafter, a vision tower, checkpoints of states."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.cache.layout import CacheGroup, cache_groups
from headrace.models.spec import ModelSpec

AMONG = ", the layers' workspace among them"
"""Of a line's bytes, where a line before it has some of them."""


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """One part of the memory: what it is, its bytes, and why it takes that many."""

    name: str
    bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Extras:
    """What a budget has beyond the decoder's own.

    lines: parts of a fixed size. slot_bytes: what every state slot has more, and slot_why. one_scale: 8-bit
    keys and values have one scale for all, and no bytes for those of each token and head. taps: hidden states of each token
    that a step leaves for a drafter; observes, proposes: nodes of a drafter's graphs (`plan.graph_rows.StepNodes`).
    rounds_inputs: linear layers turn theirs into codes before they multiply. masks: every slot has some, of tokens that may be
    drawn (`plan.mask_memory`).
    """

    lines: tuple[BudgetLine, ...] = ()
    slot_bytes: int = 0
    slot_why: str = ""
    one_scale: bool = False
    taps: int = 0
    observes: int = 0
    proposes: tuple[int, ...] = ()
    rounds_inputs: bool = False
    masks: bool = False

    def all_groups(self, spec: ModelSpec) -> tuple[CacheGroup, ...]:
        """The model's groups, with a drafter's layers."""
        return tuple(replace(group, token_vectors=0) if self.one_scale else group for group in cache_groups(spec))


NONE = Extras()
