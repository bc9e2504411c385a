"""The definition of the gated delta rule in plain PyTorch: token by token for short rows, in chunks for long ones."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from headrace.kernels.precision import accumulation_dtype
from headrace.kernels.rows import PackedRows

CHUNK_TOKENS = 64
RECURRENT_TOKENS = 8
"""Rows of at most so many tokens go token by token, which costs less than the chunk form's triangular solve."""
NORM_EPS = 1e-6


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, states: Tensor, slots: Tensor,
    rows: PackedRows,
) -> Tensor:
    wide = accumulation_dtype(v.dtype)
    ratio = v.shape[1] // k.shape[1]
    q, k = (unit(x.to(wide)).repeat_interleave(ratio, 1) for x in (q, k))  # [T, HV, DK]
    q = q * q.shape[-1] ** -0.5
    decay = -a_log.to(wide).exp() * softplus(a.to(wide) + dt_bias.to(wide))  # [T, HV], g
    beta = b.to(wide).sigmoid()
    inputs = (q, k, v.to(wide), decay, beta)
    out = torch.empty_like(v)
    for group in rows.groups:
        form = recurrent if group.tokens <= RECURRENT_TOKENS else chunked
        at = slots[group.rows]
        block = [group.take(x).transpose(1, 2) for x in inputs]  # [B, H, n, ...]
        state = states.index_select(0, at).to(wide).transpose(2, 3)
        y, state = form(block[0], block[1], block[2], block[3], block[4], state)
        group.put(out, y.transpose(1, 2))
        states.index_copy_(0, at, state.transpose(2, 3).to(states.dtype))
    return out


def unit(x: Tensor) -> Tensor:
    """x over its length, [..., D]; tiny vectors stay tiny."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + NORM_EPS)


def recurrent(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """q, k [B, H, n, DK], v [B, H, n, DV], decay, beta [B, H, n], state [B, H, DK, DV] -> (o [B, H, n, DV], state)."""
    outputs = []
    for t in range(q.shape[2]):
        query, key, value = (x[:, :, t : t + 1] for x in (q, k, v))  # [B, H, 1, D]
        state = state * decay[:, :, t, None, None].exp()
        learned = beta[:, :, t, None, None] * (value - key @ state)
        state = state + key.transpose(2, 3) * learned
        outputs.append(query @ state)
    return torch.cat(outputs, 2), state


def chunked(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """As `recurrent`, a chunk at a time: with c the cumulated decay in a chunk and D_ij = exp(c_i - c_j) for i >= j,

    T = (I + strict_lower(diag(beta) K K^T * D))^-1, U = T beta V, W = T beta e^c K;  V' = U - W S;
    O = e^c Q S + (Q K^T * D) V';  S <- e^{c_end} S + (e^{c_end - c} K)^T V'.
    """
    length = q.shape[2]
    fill = -length % CHUNK_TOKENS  # filled tokens have k = 0, beta = 0, g = 0: they leave S as it is
    blocks = (*q.shape[:2], -1, CHUNK_TOKENS)
    q, k, v = (pad(x, (0, 0, 0, fill)).view(*blocks, x.shape[-1]) for x in (q, k, v))  # [B, H, N, C, D]
    decay, beta = (pad(x, (0, fill)).view(blocks) for x in (decay, beta))  # [B, H, N, C]
    c = decay.cumsum(-1)
    later = torch.ones(CHUNK_TOKENS, CHUNK_TOKENS, dtype=torch.bool, device=q.device).triu(1)
    pair = (c[..., :, None] - c[..., None, :]).masked_fill(later, float("-inf")).exp()  # D
    past, rest = c.exp()[..., None], (c[..., -1:] - c).exp()[..., None]
    scaled = beta[..., None] * k
    system = scaled @ k.transpose(-1, -2) * pair  # the solve reads only what is below its diagonal
    right = torch.cat([beta[..., None] * v, scaled * past], -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    u, w = solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]
    within, q, k = q @ k.transpose(-1, -2) * pair, q * past, (k * rest).transpose(-1, -2)
    end = c[..., -1].exp()[..., None, None]
    outputs = []
    for i in range(q.shape[2]):
        new = u[:, :, i] - w[:, :, i] @ state
        outputs.append(q[:, :, i] @ state + within[:, :, i] @ new)
        state = end[:, :, i] * state + k[:, :, i] @ new
    return torch.cat(outputs, 2)[:, :, :length], state
