"""What a drafter on the device is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.kernels.accept_drafts import DraftSlots
from headrace.runner.page_tables import PageTables
from headrace.runner.proposer import Proposer
from headrace.runner.sampler import Sampler
from headrace.speculate.drafter import Asked, Proposal

CPU = torch.device("cpu")


def test_nothing_is_asked_behind_the_end_of_a_sequence_with_pages() -> None:
    """Drafts that are on their way may be accepted, and leave fewer places than the host knew of."""
    layout = CacheLayout((CacheGroup(0, None, (0,), 8),), 4, (6,), 3, padding=True, drafts=5)
    sampler = Sampler(layout.pool_slots, 20, CPU, torch.float32)
    whole: Any = torch.tensor
    slots = DraftSlots(
        whole([9, 2, 7, 0]), whole([12, 40, 7, 0]), whole([False] * 4), whole([0] * 4), whole([0] * 4), sampler.next_tokens,
        sampler.state.integers, sampler.state.marks,
    )
    seen: list[Asked] = []

    def propose(asked: Asked) -> Proposal:
        seen.append(asked)
        return Proposal(torch.full((len(asked.slots), asked.most), 3))

    for reads_pages, expected in ((True, [3, 5, 0, 0]), (False, [5, 5, 5, 0])):
        drafter: Any = SimpleNamespace(reads_pages=reads_pages, depths=(5,), taps=(), propose=propose)
        proposer = Proposer(drafter, slots, PageTables(layout, 20, CPU), sampler, 5)
        rows = torch.tensor([0, 1, 2, 3])
        proposer.propose(rows, torch.tensor([5, 5, 5, 0]), 5, proposer.tables(rows))
        assert seen[-1].counts.tolist() == expected
        assert len(seen[-1].page_tables) == reads_pages and (proposer.proposed == 3).all()
