"""The short causal convolution of rows of any length in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.rows import PackedRows
from headrace.kernels.tile import store
from headrace.kernels.variant import Variant

PIECE_TOKENS = 64
_BLOCK = 64
"""Channels of a program."""


@triton.jit
def _convolve(
    x, weight, tails, slots, pieces, out, x_stride, channels, channel_stride, tap_stride,
    WIDTH: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr,
):
    """SIZE tokens of a row by BLOCK channels. The first piece of a row alone reads its tail, and replaces it."""
    entry = pieces + 4 * tl.program_id(0)
    row, start, tokens, before = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = channel < channels
    t = before + tl.arange(0, SIZE)[:, None]  # within the row
    live = (t < tokens) & inside
    first = start.to(tl.int64) * x_stride
    total = tl.zeros((SIZE, BLOCK), tl.float32)
    for w in tl.static_range(WIDTH):
        s = t + (w - WIDTH + 1)
        value = tl.load(x + first + s * x_stride + channel, mask=live & (s >= 0), other=0.0).to(tl.float32)
        total += value * tl.load(weight + channel * channel_stride + w * tap_stride, mask=inside, other=0.0).to(tl.float32)
    if WIDTH > 1:
        if before == 0:
            past = tails + tl.load(slots + row) * (WIDTH - 1) * channels + channel
            for w in tl.static_range(WIDTH - 1):
                s = t + w  # into the tail
                value = tl.load(past + s * channels, mask=live & (s < WIDTH - 1), other=0.0).to(tl.float32)
                taps = weight + channel * channel_stride + w * tap_stride
                total += value * tl.load(taps, mask=inside, other=0.0).to(tl.float32)
            e = tl.arange(0, TAPS)[:, None]
            moved = tokens + e  # of tail and row together
            kept, from_row = (e < WIDTH - 1) & inside, moved - (WIDTH - 1)
            old = tl.load(past + moved * channels, mask=kept & (from_row < 0), other=0.0).to(tl.float32)
            new = tl.load(x + first + from_row * x_stride + channel, mask=kept & (from_row >= 0), other=0.0).to(tl.float32)
            tl.debug_barrier()  # other threads have read what is overwritten
            store(past + e * channels, old + new, kept)
    at = (start + t).to(tl.int64) * channels + channel
    store(out + at, total / (1.0 + tl.exp(-total)), live)


def causal_conv1d(
    x: Tensor, weight: Tensor, tails: Tensor, slots: Tensor, rows: PackedRows, shortest: int = 1,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """As the public function; tokens of rows with fewer than `shortest` tokens are left undefined, and their tails alone."""
    channels, width = weight.shape
    assert x.stride(1) == 1 and tails.is_contiguous()
    out = torch.empty(x.shape, dtype=out_dtype or x.dtype, device=x.device)
    table = rows.pieces(PIECE_TOKENS, shortest)
    if table is not None:
        grid = (len(table.pieces), triton.cdiv(channels, _BLOCK))
        taps = triton.next_power_of_2(max(1, width - 1))
        _convolve[grid](
            x, weight, tails, slots, table.pieces, out, x.stride(0), channels, *weight.stride(),
            width, PIECE_TOKENS, _BLOCK, taps, num_warps=4,
        )
    return out


def _variant(dtype: str, width: int) -> Variant:
    signature = dict.fromkeys(("x", "weight", "tails"), f"*{dtype}") | {"out": "*fp32" if dtype == "fp32" else "*fp16"}
    signature |= {"slots": "*i64", "pieces": "*i32", "x_stride": "i32", "channels": "i32", "tap_stride": "i32"}
    taps = triton.next_power_of_2(max(1, width - 1))
    constants = {"channel_stride": 1, "WIDTH": width, "SIZE": PIECE_TOKENS, "BLOCK": _BLOCK, "TAPS": taps}
    return Variant(f"{dtype}-{width}", _convolve, signature, constants, aligned=(*signature,))


VARIANTS = tuple(_variant(dtype, 4) for dtype in ("bf16", "fp16", "fp32"))
