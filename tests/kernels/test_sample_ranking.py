"""The one order of tokens, by every algorithm: the stable sort is its definition."""

import pytest
import torch

from headrace.kernels.sample.ranking import GPU_BLOCK_ELEMENTS, _by_packed_keys, _by_topk, ranked, ranked_in_blocks
from headrace.plan.workspace import RANKED_BYTES, RANKED_LOGITS


def _sorted(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [sorted(enumerate(row), key=lambda pair: (-pair[1], pair[0]))[:k] for row in logits.tolist()]
    values = torch.tensor([[value for _, value in row] for row in rows], dtype=logits.dtype)
    return values, torch.tensor([[token for token, _ in row] for row in rows])


def _logits(step: float, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(6, 900, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 3
    x = (x / step).round() * step if step else x
    x[0, ::3] = float("-inf")
    x[1] = 0.0
    x[1, ::2] = -0.0
    x[2, 1:] = float("-inf")
    return x.to(dtype)


@pytest.mark.parametrize("step", [0.0, 0.25, 3.0])
@pytest.mark.parametrize("k", [1, 2, 20, 225, 226, 899, 900, 2000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_order_is_by_logit_then_by_id(step: float, k: int, dtype: torch.dtype) -> None:
    logits = _logits(step, dtype)
    values, tokens = ranked(logits, k)
    assert tokens.tolist() == _sorted(logits, k)[1].tolist()
    assert values.tolist() == _sorted(logits, k)[0].tolist()


@pytest.mark.parametrize("step", [0.0, 0.25, 3.0])
@pytest.mark.parametrize("k", [1, 2, 20, 899])
def test_both_short_cuts_agree(step: float, k: int) -> None:
    """The GPU's packed keys, run here on the CPU, and torch.topk with its look at the boundary."""
    logits = _logits(step, torch.float32)
    for way in (_by_packed_keys, _by_topk):
        values, tokens = way(logits, k)
        assert tokens.tolist() == _sorted(logits, k)[1].tolist(), way
        assert values.tolist() == _sorted(logits, k)[0].tolist(), way


def test_equal_logits_across_the_boundary_take_the_lowest_ids() -> None:
    logits = torch.zeros(2, 40000)
    logits[1, 30000] = 1.0
    values, tokens = ranked(logits, 5)
    assert tokens.tolist() == [[0, 1, 2, 3, 4], [30000, 0, 1, 2, 3]]
    assert values[1].tolist() == [1.0, 0, 0, 0, 0]


def test_the_budget_knows_the_blocks() -> None:
    assert RANKED_LOGITS == GPU_BLOCK_ELEMENTS


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [1, 20, 900])
def test_a_gpu_has_the_same_order(k: int, dtype: torch.dtype) -> None:
    logits = _logits(0.25, dtype)
    assert ranked(logits.cuda(), k)[1].tolist() == _sorted(logits, k)[1].tolist()


@pytest.mark.gpu
def test_blocks_of_rows_on_a_gpu_take_what_is_planned_for_them() -> None:
    logits = torch.randn(100, 200_000, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    values, tokens = ranked_in_blocks(logits, 20)
    assert torch.cuda.max_memory_allocated() - held <= GPU_BLOCK_ELEMENTS * RANKED_BYTES
    expected = torch.sort(logits, dim=-1, descending=True, stable=True)
    assert torch.equal(values, expected.values[:, :20]) and torch.equal(tokens, expected.indices[:, :20])
