"""A drafter on the device before its first step: all kernels of what it observes and proposes are compiled, side by side."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headrace.kernels.ahead import compiling_ahead
from headrace.plan.graph_rows import row_buckets
from headrace.runner.draft_batch import DraftPacker, short_first
from headrace.runner.proposer import Proposer
from headrace.runner.rehearsal import row_counts, steps
from headrace.types import Row


@torch.inference_mode()
def rehearse_drafter(
    proposer: Proposer, packer: DraftPacker, slots: int, chunk_tokens: int, hidden: int, dtype: torch.dtype
) -> None:
    """Steps of every size, of rows in the padding slot, which is `slots`: what they leave there is no sequence's. chunk_tokens:
    the most of a row. hidden, dtype: of the target's hidden states.
    """
    drafter, device = proposer.drafter, proposer.proposed.device
    assert drafter is not None
    with compiling_ahead():
        for rows in _observed(slots, chunk_tokens, proposer.proposed.shape[1]):
            step = packer.pack(rows, deferred=any(row.drafts for row in rows))
            final = torch.zeros(len(step.batch.tokens), hidden, dtype=dtype, device=device)
            samples = torch.ones(len(rows), dtype=torch.bool, device=device)
            proposer.observe(step.batch, (final,) * len(drafter.taps), final, step.starts, samples)
        captured = row_buckets(slots)
        for count in row_counts(slots):
            where = torch.full((count,), slots, device=device)
            for depth in drafter.depths if count in captured else drafter.depths[-1:]:
                proposer.propose(where, torch.full_like(where, depth), depth, proposer.tables(where))
    proposer.proposed.zero_()  # of what did not run these are no tokens
    torch.cuda.empty_cache()  # a step's memory is taken later, in one piece


def _observed(slots: int, chunk_tokens: int, drafts: int) -> Iterator[tuple[Row, ...]]:
    """Rows of the steps that are rehearsed without a drafter, and of decoding steps with drafts."""
    for tokens in steps(slots, chunk_tokens):
        yield short_first([Row(0, slots, 0, () if count == 1 else (0,) * count) for count in tokens])
    for count in row_counts(slots):
        yield (Row(0, slots, 0, (), (0,) * drafts),) * count
