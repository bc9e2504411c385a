"""What lies between the q/k/v projection and attention, in one pass: q/k norm, rotary embedding, keys and values written."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.qk_norm_rope_kv_write import reference
from headrace.kernels.qk_norm_rope_kv_write.heads import HeadNorm, Heads


def qk_norm_rope_kv_write(
    qkv: Tensor, cos: Tensor, sin: Tensor, heads: Heads, norm: HeadNorm | None, keys: Tensor, values: Tensor, write_at: Tensor,
    key_scales: Tensor | None = None, value_scales: Tensor | None = None,
) -> Tensor:
    """qkv [T, heads.width] -> q [T, H, D]; k and v go to the places write_at [T] int64 of the pools, encoded as kv_write does.

    q and k are normed (rms_norm of each head by its weight), if there is a norm, then rotated by cos and sin [T, 1, r / 2] as
    rope does; v is not. The pools are [pages, page_tokens, KV, D], their scales [pages, page_tokens, KV] fp16.
    """
    if runs_triton(qkv):
        from headrace.kernels.qk_norm_rope_kv_write import triton

        return triton.qk_norm_rope_kv_write(qkv, cos, sin, heads, norm, keys, values, write_at, key_scales, value_scales)
    return reference.qk_norm_rope_kv_write(qkv, cos, sin, heads, norm, keys, values, write_at, key_scales, value_scales)


__all__ = ["HeadNorm", "Heads", "qk_norm_rope_kv_write"]
