"""Softmax attention over paged keys and values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.kernels.kv_write import kv_write
from headrace.kernels.paged_attention import paged_attention
from headrace.kernels.rope import rope
from headrace.layers.linear import Linear
from headrace.layers.norm import RmsNorm
from headrace.layers.step import Step
from headrace.models.spec import AttentionSpec


class Attention(nn.Module):
    """x [T, hidden] -> [T, hidden]; keys and values of the step's tokens are written to the layer's pools.

    `qkv` holds the rows of q, k and v, one after the other. With a gate, the q rows are, head by head, head_dim of query
    and head_dim of gate, as checkpoints have them. index: of the layer, in the pools.
    """

    def __init__(
        self, spec: AttentionSpec, hidden: int, index: int, *, eps: float, norm_offset: float, dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.spec, self.index = spec, index
        self.q_width = spec.head_dim * (2 if spec.gated else 1)
        outputs = spec.heads * self.q_width + 2 * spec.kv_heads * spec.head_dim
        self.qkv = Linear(hidden, outputs, bias=spec.qkv_bias, dtype=dtype, device=device)
        self.out = Linear(spec.heads * spec.head_dim, hidden, bias=spec.out_bias, dtype=dtype, device=device)
        if spec.qk_norm:
            self.q_norm = RmsNorm(spec.head_dim, eps=eps, offset=norm_offset, dtype=dtype, device=device)
            self.k_norm = RmsNorm(spec.head_dim, eps=eps, offset=norm_offset, dtype=dtype, device=device)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        spec, pools = self.spec, step.pools
        q, k, v, gate = self._project(x, step)
        keys, values, group = pools.keys[self.index], pools.values[self.index], pools.group_of[self.index]
        assert keys is not None and values is not None and group is not None
        kv_write(k, v, keys, values, step.batch.write_at[group])
        y = paged_attention(q, keys, values, step.paged_rows[group], spec.head_dim**-0.5)
        if gate is not None:
            y = y * gate.sigmoid()
        mixed: Tensor = self.out(y.flatten(1))
        return mixed

    def _project(self, x: Tensor, step: Step) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """q [T, H, D] and k [T, KV, D], normed and rotated, v [T, KV, D], gate [T, H, D] if there is one."""
        spec = self.spec
        cos, sin = step.rotary[spec.rope]
        qkv: Tensor = self.qkv(x)
        if not spec.gated and not spec.qk_norm:
            heads = qkv.view(len(qkv), -1, spec.head_dim)
            qk = rope(heads[:, : spec.heads + spec.kv_heads], cos, sin)  # both at once: fewer calls on the decode path
            return qk[:, : spec.heads], qk[:, spec.heads :], heads[:, spec.heads + spec.kv_heads :], None
        cut = spec.heads * self.q_width
        q = qkv[:, :cut].view(-1, spec.heads, self.q_width)
        k, v = qkv[:, cut:].view(-1, 2 * spec.kv_heads, spec.head_dim).chunk(2, 1)
        gate = q[..., spec.head_dim :] if spec.gated else None
        q = q[..., : spec.head_dim]
        if spec.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        return rope(q, cos, sin), rope(k, cos, sin), v, gate
