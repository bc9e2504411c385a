"""The drafter with its kernels: the formula, and the same captured as launched."""

from __future__ import annotations

import pytest
import torch
from tests.speculate.test_dflash import CONFIGS, SLOTS, VOCABULARY, Bench, greedy
from torch import Tensor

from headrace.speculate.drafter import Asked, Seen

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def asked(bench: Bench, slots: list[int], most: int) -> Asked:
    where = torch.tensor(slots, device=CUDA)
    positions = torch.tensor([len(bench.taken.get(slot, ())) for slot in slots], device=CUDA)
    return Asked(where, torch.full_like(where, most), where + 7, positions, (), most, greedy)


def started(name: str, dtype: torch.dtype) -> Bench:
    bench = Bench(name, dtype=dtype, device=CUDA)
    for slot in (0, 3):
        bench.admit(slot)
    bench.observe([(0, 40, 40), (3, 9, 9)])
    for kept in (1, 4, 2):
        bench.observe([(3, 4, kept), (0, 4, 5 - kept)])
    return bench


def numbers(seen: Seen) -> tuple[Tensor, ...]:
    """All that differs between steps of the same shape."""
    return *seen.taps, seen.batch.positions, seen.batch.row_offsets, seen.batch.slots, seen.starts, seen.kept


@torch.inference_mode()
@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_the_formula(name: str) -> None:
    bench = started(name, torch.float32)
    question = asked(bench, [3, 0, SLOTS], bench.drafter.most)
    drafts = bench.drafter.propose(question).tokens
    assert bool(((drafts >= 0) & (drafts < VOCABULARY)).all())
    for slot, found in zip((3, 0), bench.drafter._block(question), strict=False):
        expected = bench.formula(slot, slot + 7)
        assert float((found.cpu() - expected).abs().max()) <= 1e-4 * max(1.0, float(expected.abs().max()))


@torch.inference_mode()
@pytest.mark.parametrize("name", CONFIGS)
def test_captured_it_is_the_same(name: str) -> None:
    """A proposal that takes in what waits, and one behind more of it: replayed with new numbers, against kernel by kernel."""
    slots = [0, 3, SLOTS]
    eager, captured = (started(name, torch.bfloat16) for _ in range(2))
    first, step = asked(captured, slots, 2), captured.step([(0, 4, 2), (3, 4, 4)])
    eager.observe([(0, 4, 2), (3, 4, 4)])
    for _ in range(2):
        captured.drafter.observe(step)
        captured.drafter.propose(first)
    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    with torch.cuda.graph(graphs[0]):
        captured.drafter.observe(step)
    with torch.cuda.graph(graphs[1]):
        result: Tensor = captured.drafter.propose(first).tokens
    for kept in (3, 1):
        eager.observe([(0, 4, kept), (3, 4, 4)])
        for static, new in zip(numbers(step), numbers(captured.step([(0, 4, kept), (3, 4, 4)])), strict=True):
            static.copy_(new)
        question = asked(eager, slots, 2)
        first.positions.copy_(question.positions)
        for graph in graphs:
            graph.replay()
        assert torch.equal(result[:2], eager.drafter.propose(question).tokens[:2])
        assert torch.equal(captured.windows[0][:SLOTS], eager.windows[0][:SLOTS])
        for one, other in zip(captured.windows[1:], eager.windows[1:], strict=True):
            assert torch.equal(one[:SLOTS].nan_to_num(), other[:SLOTS].nan_to_num())
