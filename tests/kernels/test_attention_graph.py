"""A captured attention step, replayed with other lengths, counts and pages than it was captured with."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch import Tensor

from headrace.kernels.paged_attention import paged_attention, plan_rows, reference

pytestmark = pytest.mark.gpu

HEADS, KV, PAGE = 12, 2, 16
WIDTH = 40
"""Pages of a sequence at most."""


class Step:
    """Fixed places for what changes from step to step. most_tokens: of a row."""

    def __init__(self, rows: int, dim: int, most_tokens: int) -> None:
        self.rows, self.scale, self.most_tokens = rows, dim**-0.5, most_tokens
        self.table = torch.zeros(rows, WIDTH, dtype=torch.int64, device="cuda")
        self.lengths = torch.ones(rows, dtype=torch.int32, device="cuda")
        self.offsets = torch.arange(rows + 1, dtype=torch.int32, device="cuda")
        self.q = torch.randn(rows * most_tokens, HEADS, dim, device="cuda").bfloat16()
        self.keys, self.values = torch.randn(2, rows * WIDTH, PAGE, KV, dim, device="cuda").bfloat16()

    def set(self, rows: list[tuple[int, int]]) -> None:
        """(query tokens, length) of each row; the pages are drawn."""
        self.table.copy_(torch.randperm(self.rows * WIDTH).view(self.rows, WIDTH))
        self.lengths.copy_(torch.tensor([length for _, length in rows], dtype=torch.int32))
        self.offsets.copy_(torch.tensor([0, *accumulate(n for n, _ in rows)], dtype=torch.int32))

    def attend(self) -> Tensor:
        bounds = (self.most_tokens,) * self.rows
        planned = plan_rows(self.table, self.lengths, self.offsets, bounds, PAGE)
        return paged_attention(self.q, self.keys, self.values, planned, self.scale)

    def expected(self, rows: list[tuple[int, int]]) -> Tensor:
        counts = [count for count, _ in rows]
        planned = reference.plan_rows(self.table, self.lengths, self.offsets, counts, PAGE)
        q, keys, values = (x.float() for x in (self.q[: sum(counts)], self.keys, self.values))
        return reference.paged_attention(q, keys, values, planned, self.scale)


STEPS: dict[int, list[list[tuple[int, int]]]] = {
    1: [[(1, 1), (1, 640), (1, 17), (1, 300)], [(1, 640), (1, 640), (1, 1), (1, 639)], [(1, 30), (1, 2), (1, 3), (1, 640)]],
    8: [[(1, 1), (1, 640), (1, 17), (1, 300)], [(8, 8), (1, 600), (3, 77), (5, 500)], [(2, 640), (8, 640), (8, 639), (1, 1)]],
}


@pytest.mark.parametrize("dim", [64, 128])  # Triton's kernels, and those in CUDA C++
@pytest.mark.parametrize("most_tokens", STEPS)
def test_replayed_with_other_rows(most_tokens: int, dim: int) -> None:
    step, steps = Step(4, dim, most_tokens), STEPS[most_tokens]
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
