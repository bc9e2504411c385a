"""The definition of causal_conv1d in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from headrace.kernels.precision import accumulation_dtype
from headrace.kernels.rows import PackedRows


def causal_conv1d(x: Tensor, weight: Tensor, tails: Tensor, slots: Tensor, rows: PackedRows) -> Tensor:
    wide = accumulation_dtype(x.dtype)
    taps = weight.to(wide).T  # [W, C]
    width = taps.shape[0]
    out = torch.empty_like(x)
    for group in rows.groups:
        at, n = slots[group.rows], group.tokens
        past = tails.index_select(0, at)  # [B, W - 1, C]
        inputs = torch.cat([past.to(wide), group.take(x).to(wide)], 1)  # [B, W - 1 + n, C]
        total = inputs[:, :n] * taps[0]
        for w in range(1, width):
            total.addcmul_(inputs[:, w : w + n], taps[w])
        group.put(out, silu(total))
        tails.index_copy_(0, at, inputs[:, n:].to(tails.dtype))
    return out
