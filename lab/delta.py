"""The gated delta rule with gradients: FLA's kernels on a GPU, the recurrence itself elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor


def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """q, k, v [B, T, heads, size], g and beta [B, T, heads] in float32; q and k are normalised here.

    Returns [B, T, heads, size] in float32:
    S <- e^g S; d = beta (v - S^T k); S <- S + k d^T; o = S^T q (Yang, Kautz and Hatamizadeh, Gated Delta Networks, 2024).
    """
    q, k, v = (x.float() for x in (q, k, v))
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    q = q * q.shape[-1] ** -0.5
    state, outs = torch.zeros(*q.shape[:1], *q.shape[2:], v.shape[-1], device=q.device), []
    for t in range(q.shape[1]):
        state = state * g[:, t, :, None, None].exp()
        delta = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], delta)
        outs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outs, 1)


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """As `recurrence`, in v's type; on a GPU by fla-core."""
    if not q.is_cuda:
        return recurrence(q, k, v, g, beta).to(v.dtype)
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    out: Tensor = chunk_gated_delta_rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)[0]
    return out
