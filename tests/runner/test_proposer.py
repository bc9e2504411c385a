"""What a drafter on the device is asked."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.kernels.accept_drafts import DraftSlots
from headrace.kernels.sample.odds import ODDS
from headrace.plan.draft_memory import ODDS_TOKENS, progress_bytes
from headrace.runner.page_tables import PageTables
from headrace.runner.proposer import Proposer
from headrace.runner.sampler import Sampler
from headrace.speculate.drafter import Asked, Proposal
from headrace.types import Admission, Request, SamplingParams

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
        drafter: Any = SimpleNamespace(reads_pages=reads_pages, draws=False, depths=(5,), taps=(), propose=propose)
        proposer = Proposer(drafter, slots, PageTables(layout, 20, CPU), sampler, 5)
        rows = torch.tensor([0, 1, 2, 3])
        proposer.propose(rows, torch.tensor([5, 5, 5, 0]), 5, proposer.tables(rows))
        assert seen[-1].counts.tolist() == expected
        assert len(seen[-1].page_tables) == reads_pages and (proposer.proposed == 3).all()


def idle(most: int) -> tuple[Proposer, DraftSlots]:
    """Of three slots and padding, without a drafter."""
    layout = CacheLayout((CacheGroup(0, None, (0,), 8),), 4, (6,), 3, padding=True, drafts=most)
    sampler, kept = Sampler(layout.pool_slots, 20, CPU, torch.float32), torch.zeros(4, dtype=torch.int64)
    slots = DraftSlots(
        kept, kept.clone(), kept.bool(), kept.int(), kept.int(), sampler.next_tokens, sampler.state.integers,
        sampler.state.marks,
    )
    return Proposer(None, slots, PageTables(layout, 20, CPU), sampler, most), slots


@pytest.mark.parametrize("most", [1, 5, 15])
def test_what_is_kept_of_drafts_is_what_was_planned(most: int) -> None:
    proposer, slots = idle(most)
    own = (slots.positions, slots.ends, slots.frozen, slots.pending, slots.parity, proposer.proposed)
    odds = (getattr(proposer.odds, field.name) for field in fields(proposer.odds))
    assert sum(tensor.nbytes for tensor in (*own, *odds)) == 4 * progress_bytes(most) and ODDS == ODDS_TOKENS


def test_a_request_without_a_seed_is_free_until_its_slot_has_another() -> None:
    proposer, _ = idle(2)
    for seed, free in ((None, True), (0, False), (None, True), (7, False)):
        request = Request("r", (1, 2), SamplingParams(seed=seed), seed=9, max_tokens=4)
        proposer.admit([Admission(0, 1, request)])
        assert proposer.odds.free.tolist() == [False, free, False, False]
