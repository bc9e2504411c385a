"""The definition, composed of those of its parts."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.kv_write.reference import kv_write
from headrace.kernels.qk_norm_rope_kv_write.heads import HeadNorm, Heads
from headrace.kernels.rms_norm.reference import rms_norm
from headrace.kernels.rope.reference import rope


def qk_norm_rope_kv_write(
    qkv: Tensor, cos: Tensor, sin: Tensor, heads: Heads, norm: HeadNorm | None, keys: Tensor, values: Tensor, write_at: Tensor,
    key_scales: Tensor | None = None, value_scales: Tensor | None = None,
) -> Tensor:
    if not heads.gated and norm is None:  # q and k are neighbours: rotated together, which spares calls on the decode path
        parts = qkv.view(len(qkv), -1, heads.dim)
        rotated = rope(parts[:, : heads.queries + heads.keys], cos, sin)
        q, k, v = rotated[:, : heads.queries], rotated[:, heads.queries :], parts[:, heads.queries + heads.keys :]
    else:
        q, k, v, _ = heads.split(qkv)
        if norm is not None:
            q, k = rms_norm(q, norm.query, norm.eps, norm.offset), rms_norm(k, norm.key, norm.eps, norm.offset)
        q, k = rope(q, cos, sin), rope(k, cos, sin)
    kv_write(k, v, keys, values, write_at, key_scales, value_scales)
    return q
