"""The definition of block_attention in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headrace.kernels.block_attention.ring import KeyRing
from headrace.kernels.precision import accumulation_dtype


def block_attention(
    q: Tensor, k: Tensor, v: Tensor, ring: KeyRing, slots: Tensor, starts: Tensor, window: int, scale: float
) -> Tensor:
    rows, (_, heads, dim), kv = len(slots), q.shape, k.shape[1]
    if not rows:
        return torch.empty_like(q)
    wide, block = accumulation_dtype(q.dtype), len(q) // rows
    at = ring.positions[slots] - 1  # [R, W]
    place = starts[:, None] + torch.arange(block, device=q.device)  # [R, B]
    kept = (at >= 0) & (at < starts[:, None])
    seen = kept[:, None] & (at[:, None] > place[..., None] - window)  # [R, B, W]
    mask = torch.cat((seen, seen.new_ones(rows, block, block)), 2)[:, None]
    own = (x.view(rows, block, kv, dim).to(wide) for x in (k, v))
    keys, values = (
        torch.cat((torch.where(kept[..., None, None], cached[slots].to(wide), 0), mine), 1).transpose(1, 2)
        for cached, mine in zip((ring.keys, ring.values), own, strict=True)
    )  # [R, KV, W + B, D]
    queries = q.to(wide).view(rows, block, heads, dim).transpose(1, 2)  # [R, H, B, D]
    out = scaled_dot_product_attention(
        queries, keys.repeat_interleave(heads // kv, 1), values.repeat_interleave(heads // kv, 1), mask, scale=scale
    )
    return out.transpose(1, 2).reshape(q.shape).to(q.dtype)
