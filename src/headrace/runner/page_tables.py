"""Every slot's page lists on the device, of all cache groups."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from headrace.cache.layout import CacheLayout
from headrace.types import PageUpdate


class PageTables:
    """entries [G, slots, pages of a sequence] int64, brought up to date by the rows' page updates.

    Entries of a slot's earlier owner stay behind its successor's: they are valid page ids past the successor's length. The
    padding slot, where the layout has one, has nothing but the padding page. Drafts may lie behind the end of the context.
    """

    def __init__(self, layout: CacheLayout, context: int, device: torch.device) -> None:
        self.page_tokens = layout.page_tokens
        self.slots = layout.pool_slots
        self.width = -(-(context + layout.drafts) // layout.page_tokens)
        self.padding_slot = layout.slots
        self.padding_entry = layout.slots * self.width
        self.padding_page = layout.pages[0] if layout.pages else 0
        self.entries = torch.zeros(len(layout.groups), self.slots, self.width, dtype=torch.int64, device=device)
        if layout.padding:
            for table, pages in zip(self.entries, layout.pages, strict=True):
                table[layout.slots] = pages

    def places(self, updates: Iterable[tuple[int, PageUpdate]]) -> tuple[list[int], list[int]]:
        """(slot, update) pairs as (indices into the flat entries, page ids)."""
        indices: list[int] = []
        pages: list[int] = []
        for slot, update in updates:
            first = (update.group * self.slots + slot) * self.width + update.first
            indices.extend(range(first, first + len(update.pages)))
            pages.extend(update.pages)
        return indices, pages

    def apply(self, indices: Tensor, pages: Tensor) -> None:
        """Set entries[indices[i]] = pages[i], as `places` gave them."""
        self.entries.view(-1).index_copy_(0, indices, pages)

    def write_at(self, slots: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        """For each group [T]: where the token at positions [T] of slots [T] lies, as page * page_tokens + offset."""
        pages, offsets = positions // self.page_tokens, positions % self.page_tokens
        return tuple(table[slots, pages] * self.page_tokens + offsets for table in self.entries)
