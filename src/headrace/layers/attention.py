"""Softmax attention over paged keys and values."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

import torch
from torch import Tensor, nn

from headrace.kernels.paged_attention import PagedRows, forms_of, paged_attention
from headrace.kernels.qk_norm_rope_kv_write import HeadNorm, Heads, qk_norm_rope_kv_write
from headrace.kernels.rms_norm import Activations
from headrace.layers.batch import Pools
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
        group = step.pools.group_of[self.index]
        assert group is not None
        qkv: Tensor = self.qkv(x)
        q = self.store(qkv, self.heads, step.rotary[self.spec.rope], step.pools, step.batch.write_at[group])
        return self.attend(q, qkv, step.pools, step.paged_rows[group])

    def store(self, qkv: Tensor, heads: Heads, rotary: tuple[Tensor, Tensor], pools: Pools, write_at: Tensor) -> Tensor:
        """The queries [T, heads, head_dim] of projections [T, heads.width]; their keys and values go to the pools."""
        keys, values = self._pools(pools)
        return qk_norm_rope_kv_write(
            qkv, *rotary, heads, self._norm(), keys, values, write_at, *pools.scales(self.index)
        )

    def attend(self, q: Tensor, qkv: Tensor, pools: Pools, rows: PagedRows) -> Tensor:
        """What `out` is to project, of queries and of the projections that they are from, which have the gate."""
        gate = self.heads.split(qkv)[3] if self.spec.gated else None
        scale = self.spec.head_dim**-0.5
        return paged_attention(q, *self._pools(pools), rows, scale, *pools.scales(self.index), gate).flatten(1)

    def forms(self, tokens: int) -> tuple[Hashable, ...]:
        """What a number of tokens decides of the kernels of each linear layer: those of equal answers are the same."""
        return self.qkv.form_of(tokens), self.out.form_of(tokens)

    def row_forms(self, pools: Pools) -> Callable[[int, int], tuple[Hashable, ...]]:
        """The same of kernels for rows: of how many there are, and how many tokens the longest that is split has."""
        qkv = self.out.like_inputs(self.heads.width)
        q = qkv.new_empty(1, self.spec.heads, self.spec.head_dim)
        gate = self.heads.split(qkv)[3] if self.spec.gated else None
        keys, values = self._pools(pools)
        return partial(forms_of, (q, keys, values, *pools.scales(self.index)), gate, keys.shape[1])

    def _pools(self, pools: Pools) -> tuple[Tensor, Tensor]:
        keys, values = pools.keys[self.index], pools.values[self.index]
        assert keys is not None and values is not None
        return keys, values

    def reads_pending(self) -> bool:
        return self.qkv.reads_pending()

    def _norm(self) -> HeadNorm | None:
        if not self.spec.qk_norm:
            return None
        return HeadNorm(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps, self.q_norm.offset)
