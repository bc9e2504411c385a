"""Reported log-probabilities against log_softmax in float64, and that nothing unprintable leaves."""

import pytest
import torch

from headrace.kernels.sample import LOWEST_LOGPROB, top_logprobs

INF = float("inf")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("k", [0, 1, 5, 20])
def test_is_log_softmax(dtype: torch.dtype, tolerance: float, k: int) -> None:
    logits = (torch.randn(7, 3000, generator=torch.Generator().manual_seed(1)) * 5).to(dtype)
    tokens = torch.randint(0, 3000, (7,), generator=torch.Generator().manual_seed(2))
    exact = logits.double().log_softmax(-1)
    chosen, values, ids = top_logprobs(logits, tokens, k)
    assert values.shape == ids.shape == (7, k)
    torch.testing.assert_close(chosen.double(), exact.gather(1, tokens[:, None])[:, 0], atol=tolerance, rtol=0)
    best = exact.topk(k, dim=-1)
    assert torch.equal(ids, best.indices)
    torch.testing.assert_close(values.double(), best.values, atol=tolerance, rtol=0)


def test_equal_alternatives_come_in_the_order_of_their_ids() -> None:
    _, _, ids = top_logprobs(torch.zeros(1, 5000), torch.tensor([4999]), 3)
    assert ids.tolist() == [[0, 1, 2]]


def test_more_alternatives_than_tokens() -> None:
    _, values, ids = top_logprobs(torch.zeros(2, 3), torch.tensor([0, 2]), 20)
    assert values.shape == (2, 3) and ids.tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize("row", [[0.0, -INF, -INF], [-INF] * 3, [float("nan")] * 3, [3e38, -3e38, 0.0]])
def test_impossible_tokens_are_finite(row: list[float]) -> None:
    chosen, values, _ = top_logprobs(torch.tensor([row]), torch.tensor([1]), 3)
    for found in (*chosen.tolist(), *values[0].tolist()):
        assert LOWEST_LOGPROB <= found <= 0.0
    assert chosen.tolist() == [LOWEST_LOGPROB]
