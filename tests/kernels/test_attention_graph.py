"""A captured attention step, replayed with other lengths, counts and pages than it was captured with."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch import Tensor

from headrace.kernels.paged_attention import paged_attention, plan_rows, reference

pytestmark = pytest.mark.gpu

HEADS, KV, DIM, PAGE = 12, 2, 64, 16
WIDTH = 40
"""Pages of a sequence at most."""
MOST_TOKENS = 8


class Step:
    """Fixed places for what changes from step to step."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.table = torch.zeros(rows, WIDTH, dtype=torch.int64, device="cuda")
        self.lengths = torch.ones(rows, dtype=torch.int32, device="cuda")
        self.offsets = torch.arange(rows + 1, dtype=torch.int32, device="cuda")
        self.q = torch.randn(rows * MOST_TOKENS, HEADS, DIM, device="cuda").bfloat16()
        self.keys, self.values = torch.randn(2, rows * WIDTH, PAGE, KV, DIM, device="cuda").bfloat16()

    def set(self, rows: list[tuple[int, int]]) -> None:
        """(query tokens, length) of each row; the pages are drawn."""
        self.table.copy_(torch.randperm(self.rows * WIDTH).view(self.rows, WIDTH))
        self.lengths.copy_(torch.tensor([length for _, length in rows], dtype=torch.int32))
        self.offsets.copy_(torch.tensor([0, *accumulate(n for n, _ in rows)], dtype=torch.int32))

    def attend(self) -> Tensor:
        bounds = (MOST_TOKENS,) * self.rows
        planned = plan_rows(self.table, self.lengths, self.offsets, bounds, PAGE)
        return paged_attention(self.q, self.keys, self.values, planned, DIM**-0.5)

    def expected(self, rows: list[tuple[int, int]]) -> Tensor:
        counts = [count for count, _ in rows]
        planned = reference.plan_rows(self.table, self.lengths, self.offsets, counts, PAGE)
        q, keys, values = (x.float() for x in (self.q[: sum(counts)], self.keys, self.values))
        return reference.paged_attention(q, keys, values, planned, DIM**-0.5)


def test_replayed_with_other_rows() -> None:
    steps: list[list[tuple[int, int]]] = [
        [(1, 1), (1, 640), (1, 17), (1, 300)],
        [(8, 8), (1, 600), (3, 77), (5, 500)],
        [(2, 640), (8, 640), (8, 639), (1, 1)],
    ]
    step = Step(4)
    step.set(steps[0])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step.attend()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step.attend()
    for rows in steps:
        step.set(rows)
        graph.replay()
        tokens = sum(n for n, _ in rows)
        replayed = out[:tokens].clone()
        assert torch.equal(replayed, step.attend()[:tokens])
        want = step.expected(rows)
        error = (replayed.float() - want).abs() / want.square().mean(-1, keepdim=True).sqrt()  # rms of each vector
        assert float(error.mean()) <= 3e-3 and float(error.max()) <= 2e-2
