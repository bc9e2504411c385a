"""The definition of kv_write in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.kv_write.codes import encode


def kv_write(
    k: Tensor, v: Tensor, keys: Tensor, values: Tensor, write_at: Tensor, key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> None:
    for pool, scales, new in ((keys, key_scales, k), (values, value_scales, v)):
        if scales is not None:
            new, scale = encode(new, pool.dtype)
            scales.view(-1, *scales.shape[2:]).index_copy_(0, write_at, scale.to(scales.dtype))
        _put(pool, write_at, new.to(pool.dtype))


def _put(pool: Tensor, write_at: Tensor, new: Tensor) -> None:
    """Not every PyTorch copies fp8 numbers by index: their bytes it can."""
    if pool.dtype == torch.float8_e4m3fn:
        pool, new = pool.view(torch.uint8), new.view(torch.uint8)
    pool.view(-1, *pool.shape[2:]).index_copy_(0, write_at, new)
