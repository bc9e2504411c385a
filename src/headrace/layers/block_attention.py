"""Attention of blocks of tokens over keys and values that are made of something else, and over themselves."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.kernels.block_attention import KeyRing, block_attention
from headrace.kernels.qk_norm_rope_kv_write import HeadNorm, Heads, qk_norm_rope_kv_write
from headrace.layers.linear import Linear
from headrace.layers.norm import RmsNorm
from headrace.models.spec import AttentionSpec

Rotary = tuple[Tensor, Tensor]
"""Cosines and sines of tokens' positions, each [T, 1, D / 2]."""


class BlockAttention(nn.Module):
    """`kv` holds the rows of k, then of v: of the blocks' own tokens, and of the context, of which it makes what rings keep."""

    def __init__(
        self, spec: AttentionSpec, hidden: int, *, eps: float, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.spec = spec
        self.heads = Heads(spec.heads, spec.kv_heads, spec.head_dim)
        self.keys_only = Heads(0, spec.kv_heads, spec.head_dim)
        self.q = Linear(hidden, spec.heads * spec.head_dim, dtype=dtype, device=device)
        self.kv = Linear(hidden, 2 * spec.kv_heads * spec.head_dim, dtype=dtype, device=device)
        self.out = Linear(spec.heads * spec.head_dim, hidden, dtype=dtype, device=device)
        self.q_norm = RmsNorm(spec.head_dim, eps=eps, dtype=dtype, device=device)
        self.k_norm = RmsNorm(spec.head_dim, eps=eps, dtype=dtype, device=device)

    def keep(self, context: Tensor, rotary: Rotary, ring: KeyRing, places: Tensor) -> None:
        """Put keys and values of context [T, hidden] into the ring, at places [T] int64 = slot W + position % W."""
        qk_norm_rope_kv_write(
            self.kv(context), *rotary, self.keys_only, self._norm, ring.keys, ring.values, places
        )

    def forward(self, x: Tensor, rotary: Rotary, ring: KeyRing, slots: Tensor, starts: Tensor, own: Tensor) -> Tensor:
        """x [R B, hidden] -> [R B, hidden]. slots, starts [R]: see kernels.block_attention. own [R B] int64: 0, 1, 2, ..."""
        spec = self.spec
        k, v = (x.new_empty(1, len(x), spec.kv_heads, spec.head_dim) for _ in range(2))
        qkv = torch.cat((self.q(x), self.kv(x)), 1)
        q = qk_norm_rope_kv_write(qkv, *rotary, self.heads, self._norm, k, v, own)
        window = spec.window or 1 << 30
        y: Tensor = self.out(block_attention(q, k[0], v[0], ring, slots, starts, window, spec.head_dim**-0.5).flatten(1))
        return y

    @property
    def _norm(self) -> HeadNorm:
        return HeadNorm(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps, self.q_norm.offset)
