"""The gated delta rule by chunks is the recurrence, and has its gradients."""

from __future__ import annotations

import pytest
import torch
from lab.delta import gated_delta_rule, recurrence
from torch import Tensor


def inputs(tokens: int, key_heads: int, heads: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(tokens)
    q, k = (torch.randn(2, tokens, key_heads, 16, generator=random) for _ in range(2))
    v = torch.randn(2, tokens, heads, 32, generator=random)
    g = -2 * torch.rand(2, tokens, heads, generator=random)
    beta = torch.rand(2, tokens, heads, generator=random)
    return [x.requires_grad_() for x in (q, k, v, g, beta)]


@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 50])
@pytest.mark.parametrize("heads", [(3, 3), (2, 6)])
def test_chunks_are_the_recurrence(tokens: int, heads: tuple[int, int]) -> None:
    given = inputs(tokens, *heads)
    expected, found = recurrence(*given), gated_delta_rule(*given, chunk=8)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0))
    gradients = [torch.autograd.grad((out * weights).sum(), given) for out in (expected, found)]
    for ours, theirs in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_what_decays_at_once_leaves_no_nan() -> None:
    q, k, v, g, beta = inputs(40, 1, 1)
    out = gated_delta_rule(q, k, v, g * 1e4, beta)
    out.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v, g, beta))
