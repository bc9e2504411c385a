"""Rows of one token in one launch; longer rows through the three operations' own kernels.

A decoding program holds one value head's whole state: it is read once and written once, and the 48 heads of a lone row are
all in flight together. The value heads of a key head each compute its convolution; the last of them to have read the key
head's tails, which a ticket tells, moves those on.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.causal_conv1d.triton import causal_conv1d
from headrace.kernels.gated_delta_mix.split import split_gates, split_qkv
from headrace.kernels.gated_delta_mix.weights import MixWeights
from headrace.kernels.gated_delta_rule.triton import gated_delta_rule
from headrace.kernels.gated_delta_rule.triton.tiles import NORM_EPS, log_decay, sigmoid
from headrace.kernels.gated_rms_norm.triton import gated_rms_norm
from headrace.kernels.rows import PackedRows, RowGroup
from headrace.kernels.tile import store
from headrace.kernels.variant import Variant


@triton.jit
def _convolved(x, weight, past, channel, mask, channels, WIDTH: tl.constexpr):
    """silu of one token's convolution. x, past: the token's inputs and its tail [WIDTH - 1, channels]."""
    new = tl.load(x + channel, mask=mask, other=0.0).to(tl.float32)
    total = new * tl.load(weight + channel * WIDTH + WIDTH - 1, mask=mask, other=0.0).to(tl.float32)
    for w in tl.static_range(WIDTH - 1):
        value = tl.load(past + w * channels + channel, mask=mask, other=0.0).to(tl.float32)
        total += value * tl.load(weight + channel * WIDTH + w, mask=mask, other=0.0).to(tl.float32)
    return total * sigmoid(total)


@triton.jit
def _shift(x, past, channel, mask, channels, WIDTH: tl.constexpr, TAPS: tl.constexpr):
    """Moves the tails of `channel` on by one token."""
    tap = tl.arange(0, TAPS)[:, None]
    inside = (tap < WIDTH - 1) & mask[None, :]
    older = inside & (tap < WIDTH - 2)
    value = tl.load(past + (tap + 1) * channels + channel[None, :], mask=older, other=0.0).to(tl.float32)
    value += tl.load(x + channel[None, :], mask=inside & (tap == WIDTH - 2), other=0.0).to(tl.float32)
    tl.debug_barrier()  # other threads have read what is overwritten
    store(past + tap * channels + channel[None, :], value, inside)


@triton.jit(do_not_specialize=["first_row", "first_token"])
def _decode(
    qkvz, ab, conv, a_log, dt_bias, norm, tails, states, slots, row_index, token_index, tickets, out,
    first_row, first_token, channels, qkvz_stride, ab_stride, scale, eps,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, INDEXED: tl.constexpr,
):
    """One value head of one row. X [BV, BK] is its S^T."""
    head, row, token = tl.program_id(0), first_row + tl.program_id(1), (first_token + tl.program_id(1)).to(tl.int64)
    if INDEXED:
        row, token = tl.load(row_index + tl.program_id(1)), tl.load(token_index + tl.program_id(1))
    slot = tl.load(slots + row)
    dv, dk = tl.arange(0, BV), tl.arange(0, BK)
    live, key_live = dv < DV, dk < DK
    at = states + (slot * HEADS + head) * (DV * DK) + (dv[:, None] * DK + dk[None, :])
    there = live[:, None] & key_live[None, :]
    stored = tl.load(at, mask=there, other=0.0)

    key_head = head // (HEADS // KEY_HEADS)
    q_at, k_at = key_head * DK + dk, (KEY_HEADS + key_head) * DK + dk
    v_at = 2 * KEY_HEADS * DK + head * DV + dv
    x, past = qkvz + token * qkvz_stride, tails + slot * (WIDTH - 1) * channels
    q = _convolved(x, conv, past, q_at, key_live, channels, WIDTH)
    k = _convolved(x, conv, past, k_at, key_live, channels, WIDTH)
    v = _convolved(x, conv, past, v_at, live, channels, WIDTH)
    if WIDTH > 1:
        tl.debug_barrier()  # all threads have read the tails
        _shift(x, past, v_at, live, channels, WIDTH, TAPS)
        last = True
        if HEADS > KEY_HEADS:
            ticket = tickets + tl.program_id(1) * KEY_HEADS + key_head
            last = tl.atomic_add(ticket, 1, sem="acq_rel") == HEADS // KEY_HEADS - 1
            tl.store(ticket, 0, mask=last)
        _shift(x, past, q_at, key_live & last, channels, WIDTH, TAPS)
        _shift(x, past, k_at, key_live & last, channels, WIDTH, TAPS)

    q *= tl.rsqrt(tl.sum(q * q) + NORM_EPS) * scale
    k *= tl.rsqrt(tl.sum(k * k) + NORM_EPS)
    a, b = tl.load(ab + token * ab_stride + head).to(tl.float32), tl.load(ab + token * ab_stride + HEADS + head).to(tl.float32)
    keep = tl.exp(log_decay(a, tl.load(a_log + head).to(tl.float32), tl.load(dt_bias + head).to(tl.float32)))
    state = stored.to(tl.float32) * keep
    d = sigmoid(b) * (v - tl.sum(state * k[None, :], 1))
    o = tl.sum(state * q[None, :], 1) + tl.sum(k * q) * d
    store(at, state + d[:, None] * k[None, :], there)

    z = tl.load(x + channels + head * DV + dv, mask=live, other=0.0).to(tl.float32)
    weight = tl.load(norm + dv, mask=live, other=0.0).to(tl.float32)
    o *= tl.rsqrt(tl.sum(o * o) / DV + eps) * weight * z * sigmoid(z)
    store(out + (token * HEADS + head) * DV + dv, o, live)


def gated_delta_mix(
    qkvz: Tensor, ab: Tensor, weights: MixWeights, tails: Tensor, states: Tensor, slots: Tensor, rows: PackedRows
) -> Tensor:
    assert qkvz.stride(1) == 1 and ab.stride(1) == 1 and states.is_contiguous() and tails.is_contiguous()
    _, heads, value_dim, _ = states.shape
    singles = rows.singles
    if singles is not None and singles.count == len(rows.row_tokens):
        out = torch.empty((len(qkvz), heads * value_dim), dtype=qkvz.dtype, device=qkvz.device)
    else:
        out = _long_rows(qkvz, ab, weights, tails, states, slots, rows)
    if singles is not None:
        decode(qkvz, ab, weights, tails, states, slots, singles, rows, out)
    return out


def _long_rows(
    qkvz: Tensor, ab: Tensor, weights: MixWeights, tails: Tensor, states: Tensor, slots: Tensor, rows: PackedRows
) -> Tensor:
    """The tokens of rows of two tokens and more; the others' are undefined."""
    channels = weights.conv.shape[0]
    qkv = causal_conv1d(qkvz[:, :channels], weights.conv, tails, slots, rows, shortest=2)
    (q, k, v), (a, b) = split_qkv(qkv, states), split_gates(ab)
    y = gated_delta_rule(q, k, v, a, b, weights.a_log, weights.dt_bias, states, slots, rows, shortest=2)
    return gated_rms_norm(y, qkvz[:, channels:].view(v.shape), weights.norm, weights.eps).flatten(1)


def decode(
    qkvz: Tensor, ab: Tensor, weights: MixWeights, tails: Tensor, states: Tensor, slots: Tensor, singles: RowGroup,
    rows: PackedRows, out: Tensor, num_warps: int = 8,
) -> None:
    """Writes the rows of one token into out [T, HV DV]. Rows of a captured graph must be neighbours: then nothing is read."""
    channels, width = weights.conv.shape
    _, heads, value_dim, key_dim = states.shape
    key_heads = (channels - heads * value_dim) // (2 * key_dim)
    indexed = isinstance(singles.rows, Tensor)
    first_row, first_token = (0 if isinstance(at, Tensor) else at.start for at in (singles.rows, singles.at))
    row_index, token_index = (at if isinstance(at, Tensor) else slots for at in (singles.rows, singles.at))
    _decode[heads, singles.count](
        qkvz, ab, weights.conv, weights.a_log, weights.dt_bias, weights.norm, tails, states, slots, row_index, token_index,
        rows.tickets(singles.count * key_heads), out, first_row, first_token, channels, qkvz.stride(0), ab.stride(0),
        key_dim**-0.5, weights.eps, key_heads, heads, key_dim, value_dim, width, triton.next_power_of_2(max(1, width - 1)),
        triton.next_power_of_2(key_dim), triton.next_power_of_2(value_dim), indexed, num_warps=num_warps,
    )


def _variant(dtype: str, state: str, indexed: bool) -> Variant:
    signature = dict.fromkeys(("qkvz", "ab", "conv", "tails", "out"), f"*{dtype}") | {"states": f"*{state}", "tickets": "*i32"}
    signature |= dict.fromkeys(("a_log", "dt_bias", "norm"), "*fp32")
    signature |= dict.fromkeys(("slots", "row_index", "token_index"), "*i64")
    signature |= dict.fromkeys(("channels", "qkvz_stride", "ab_stride"), "i32")
    aligned = tuple(signature)
    signature |= {"first_row": "i32", "first_token": "i32", "scale": "fp32", "eps": "fp32"}
    constants: dict[str, object] = {
        "KEY_HEADS": 16, "HEADS": 48, "DK": 128, "DV": 128, "WIDTH": 4, "TAPS": 4, "BK": 128, "BV": 128, "INDEXED": indexed
    }
    name = f"decode-{dtype}-{state}{'-indexed' if indexed else ''}"
    return Variant(name, _decode, signature, constants, num_warps=8, aligned=aligned)


_TYPES = (("bf16", "fp16"), ("bf16", "fp32"), ("fp16", "fp16"), ("fp32", "fp32"))
VARIANTS = (*(_variant(*types, indexed=False) for types in _TYPES), _variant("bf16", "fp16", indexed=True))
