"""Put new keys and values into their pages."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.kv_write import reference


def kv_write(
    k: Tensor, v: Tensor, keys: Tensor, values: Tensor, write_at: Tensor, key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> None:
    """k, v [T, KV, D] go to token write_at[t] (page * page_tokens + offset, [T] int64) of keys, values [pages, P, KV, D].

    In place, in the pool's type: with scales [pages, P, KV] fp16 as 8-bit codes (int8 or fp8 e4m3, see `codes.encode`). The
    places of one step are distinct.
    """
    reference.kv_write(k, v, keys, values, write_at, key_scales, value_scales)
