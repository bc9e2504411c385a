"""Softmax attention over paged keys and values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.kernels.paged_attention import paged_attention
from headrace.kernels.qk_norm_rope_kv_write import HeadNorm, Heads, qk_norm_rope_kv_write
from headrace.kernels.rms_norm import Activations
from headrace.layers.linear import Linear
from headrace.layers.norm import RmsNorm
from headrace.layers.step import Step
from headrace.models.spec import AttentionSpec


class Attention(nn.Module):
    """x [T, hidden] -> what `out` is to project, [T, heads * head_dim]; the step's keys and values go to the layer's pools.

    `qkv` holds the rows of q, k and v, one after the other. With a gate, the q rows are, head by head, head_dim of query
    and head_dim of gate, as checkpoints have them. index: of the layer, in the pools.
    """

    def __init__(
        self, spec: AttentionSpec, hidden: int, index: int, *, eps: float, norm_offset: float, dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.spec, self.index = spec, index
        self.heads = Heads(spec.heads, spec.kv_heads, spec.head_dim, spec.gated)
        self.qkv = Linear(hidden, self.heads.width, bias=spec.qkv_bias, dtype=dtype, device=device)
        self.out = Linear(spec.heads * spec.head_dim, hidden, bias=spec.out_bias, dtype=dtype, device=device)
        if spec.qk_norm:
            self.q_norm = RmsNorm(spec.head_dim, eps=eps, offset=norm_offset, dtype=dtype, device=device)
            self.k_norm = RmsNorm(spec.head_dim, eps=eps, offset=norm_offset, dtype=dtype, device=device)

    def forward(self, x: Activations, step: Step) -> Tensor:
        spec, pools, index = self.spec, step.pools, self.index
        keys, values, group = pools.keys[index], pools.values[index], pools.group_of[index]
        assert keys is not None and values is not None and group is not None
        qkv: Tensor = self.qkv(x)
        cos, sin = step.rotary[spec.rope]
        q = qk_norm_rope_kv_write(
            qkv, cos, sin, self.heads, self._norm(), keys, values, step.batch.write_at[group], *pools.scales(index)
        )
        gate = self.heads.split(qkv)[3] if spec.gated else None
        y = paged_attention(q, keys, values, step.paged_rows[group], spec.head_dim**-0.5, *pools.scales(index), gate)
        return y.flatten(1)

    def reads_pending(self) -> bool:
        return self.qkv.reads_pending()

    def _norm(self) -> HeadNorm | None:
        if not self.spec.qk_norm:
            return None
        return HeadNorm(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps, self.q_norm.offset)
