"""The gated delta rule with gradients, in PyTorch's operations: chunk by chunk, and token by token as the definition.

q, k [B, T, key heads, K], v [B, T, heads, V], g and beta [B, T, heads]: as many heads in a row share a key head. q and k are
normalised here, and q is divided by the root of K. Both return [B, T, heads, V] in v's type:
S <- e^g S; d = beta (v - S^T k); S <- S + k d^T; o = S^T q (Yang, Kautz and Hatamizadeh, Gated Delta Networks, 2024).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 64


def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Token by token, in float32."""
    share = v.shape[2] // k.shape[2]
    q, k = (_normalised(x).repeat_interleave(share, 2) for x in (q, k))
    q = q * q.shape[-1] ** -0.5
    state, outs = torch.zeros(*q.shape[:1], *q.shape[2:], v.shape[-1], device=q.device), []
    for t in range(q.shape[1]):
        state = state * g[:, t, :, None, None].exp()
        delta = beta[:, t, :, None] * (v[:, t].float() - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], delta)
        outs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outs, 1).to(v.dtype)


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunk: int = CHUNK) -> Tensor:
    """In float32: within a chunk one triangular system gives every token's d, from chunk to chunk S goes on."""
    (batch, tokens, heads, _), dtype = v.shape, v.dtype
    groups = (k.shape[2], heads // k.shape[2])
    with torch.autocast(q.device.type, enabled=False):
        q, k = (_chunks(_normalised(x), chunk).unsqueeze(2) for x in (q, k))  # [B, key heads, 1, N, C, K]
        v, g, beta = (_chunks(x.float(), chunk).unflatten(1, groups) for x in (v, g, beta))  # [B, key heads, share, N, C, V]
        g = g.cumsum(-1)
        decay = (g[..., :, None] - g[..., None, :]).tril().exp().tril()  # of row i since row j
        system = k @ k.mT * (decay * beta[..., None]).tril(-1)
        sides = torch.cat([beta[..., None] * v, (beta * g.exp())[..., None] * k], -1)
        solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
        values, keys = solved.split([v.shape[-1], k.shape[-1]], -1)
        q = q * q.shape[-1] ** -0.5
        within, last = q @ k.mT * decay, g[..., -1:]
        reads, writes = q * g.exp()[..., None], (k * (last - g).exp()[..., None]).mT
        parts = [x.flatten(0, 2).unbind(1) for x in (values, keys, reads, within, writes, last.exp()[..., None])]
        return torch.cat(_chunk_by_chunk(*parts), 1).unflatten(0, (batch, heads))[:, :, :tokens].transpose(1, 2).to(dtype)


def _chunk_by_chunk(*parts: tuple[Tensor, ...]) -> list[Tensor]:
    """Each part of every chunk [B heads, ...]; what every chunk puts out, [B heads, C, V]."""
    value, key, *_ = (part[0] for part in parts)
    state, outs = value.new_zeros(value.shape[0], key.shape[-1], value.shape[-1]), []
    for value, key, read, within, write, kept in zip(*parts, strict=True):
        delta = torch.baddbmm(value, key, state, alpha=-1)
        outs.append(torch.baddbmm(read @ state, within, delta))
        state = torch.baddbmm(state * kept, write, delta)
    return outs


def _normalised(x: Tensor) -> Tensor:
    """x / sqrt(|x|^2 + 1e-6) in float32, as an RMS norm, whose kernel is one."""
    size = x.shape[-1]
    weight = torch.full((size,), size**-0.5, device=x.device)
    return functional.rms_norm(x.float(), (size,), weight, 1e-6 / size)


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """[B, T, heads, ...] -> [B, heads, chunks, chunk, ...], zeros behind the end: tokens that change nothing."""
    x = x.transpose(1, 2)
    ahead = -x.shape[2] % chunk
    return functional.pad(x, (*[0] * (2 * (x.ndim - 3)), 0, ahead)).unflatten(2, (-1, chunk))
