"""How a model's memory of a sequence is laid out: cache groups with their pages, and state slots. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.spec import AttentionSpec, GatedDeltaSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Attention layers of one window, which share a page list. window None keeps every token.

    layers: indices into ModelSpec.mixers. token_elements: K and V elements of one token over all its layers.
    token_vectors: the heads' vectors that they make up.
    """

    index: int
    window: int | None
    layers: tuple[int, ...]
    token_elements: int
    token_vectors: int = 0


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """What the budget bought: `pages[g]` pages of `page_tokens` tokens for group g, and `slots` state slots.

    padding: the pools have one slot and one page of every group more, the last of each, which no sequence ever owns: captured
    graphs point the rows at them that a step leaves empty, and what must not be written where it belongs goes there. drafts:
    the most of a row, for which every slot has room; layouts with drafts have padding. checkpoints: states that are kept of
    what no sequence is at any more; they lie behind the slots.
    """

    groups: tuple[CacheGroup, ...]
    page_tokens: int
    pages: tuple[int, ...]
    slots: int
    padding: bool = False
    drafts: int = 0
    checkpoints: int = 0

    def __post_init__(self) -> None:
        if self.drafts and not self.padding:
            raise ValueError("rows with drafts need a padding slot and page")

    @property
    def pool_pages(self) -> tuple[int, ...]:
        """Pages of each group's pool."""
        return tuple(count + self.padding for count in self.pages)

    @property
    def pool_slots(self) -> int:
        """Slots that rows may have."""
        return self.slots + self.padding

    @property
    def pool_states(self) -> int:
        """States of the pools: those of slots, then checkpoints."""
        return self.pool_slots + self.checkpoints


def cache_groups(spec: ModelSpec) -> tuple[CacheGroup, ...]:
    """The model's groups, with a drafter's layers: the full-context one first, then windows in rising order. Empty for a model
    without attention.
    """
    by_window: dict[int | None, list[int]] = {}
    mixers = spec.mixers
    for index, mixer in enumerate(mixers):
        if isinstance(mixer, AttentionSpec):
            by_window.setdefault(mixer.window, []).append(index)
    windows = sorted(by_window, key=lambda w: (w is not None, w or 0))
    return tuple(
        CacheGroup(
            i, w, tuple(by_window[w]), sum(m.head_dim * 2 * m.kv_heads for m in _attention(mixers, by_window[w])),
            sum(2 * m.kv_heads for m in _attention(mixers, by_window[w])),
        )
        for i, w in enumerate(windows)
    )


def _attention(mixers: tuple[AttentionSpec | GatedDeltaSpec, ...], layers: list[int]) -> list[AttentionSpec]:
    return [mixer for mixer in (mixers[layer] for layer in layers) if isinstance(mixer, AttentionSpec)]


def state_elements(spec: ModelSpec) -> tuple[int, int]:
    """Elements a sequence keeps over all Gated DeltaNet layers: (of S, of the convolution tails)."""
    mixers = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, GatedDeltaSpec)]
    return sum(m.state_elements for m in mixers), sum(m.conv_elements for m in mixers)
