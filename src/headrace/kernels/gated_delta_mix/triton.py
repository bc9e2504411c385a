"""Rows of one token in two launches (in one, where `cuda` has a kernel); longer rows through the three operations' own kernels
(two of them in `prefill`, where that has some).

The first launch convolves, moves the tails on and makes unit vectors of q and k, in fp32: [rows, channels] of workspace. In the
second a program holds one value head's whole state, which is read once and written once, and norms its output.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.causal_conv1d.triton import causal_conv1d
from headrace.kernels.dispatch import early
from headrace.kernels.gated_delta_mix import cuda, prefill
from headrace.kernels.gated_delta_mix.split import split_gates, split_qkv
from headrace.kernels.gated_delta_mix.weights import MixWeights
from headrace.kernels.gated_delta_rule.triton import gated_delta_rule
from headrace.kernels.gated_delta_rule.triton.tiles import NORM_EPS, log_decay, sigmoid
from headrace.kernels.gated_rms_norm.triton import gated_rms_norm
from headrace.kernels.rows import PackedRows, RowGroup
from headrace.kernels.tile import await_previous, let_next_start, store
from headrace.kernels.variant import Variant


@triton.jit(do_not_specialize=["first_row", "first_token"])
def _convolve_token(
    qkvz, conv, tails, slots, row_index, token_index, mixed,
    first_row, first_token, channels, qkvz_stride, channel_stride, tap_stride, scale,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr,
    BLOCK: tl.constexpr, INDEXED: tl.constexpr, EARLY: tl.constexpr,
):
    """One head of q, k or v of one row, into mixed [rows, channels]: convolved, q and k as unit vectors. Moves its tails on.

    A row whose token is -1 has none. The next kernel starts behind the wait, so that it may read before its own wait whatever
    is older than this one.
    """
    part, row, token = tl.program_id(0), first_row + tl.program_id(1), (first_token + tl.program_id(1)).to(tl.int64)
    is_key = part < 2 * KEY_HEADS
    width = tl.where(is_key, DK, DV)
    first = tl.where(is_key, part * DK, 2 * KEY_HEADS * DK + (part - 2 * KEY_HEADS) * DV)
    at = tl.arange(0, BLOCK)[None, :]
    tap, channel, live = tl.arange(0, TAPS)[:, None], first + at, at < width
    taps = tl.load(conv + channel * channel_stride + tap * tap_stride, mask=live & (tap < WIDTH), other=0.0).to(tl.float32)
    await_previous(EARLY)
    let_next_start(EARLY)
    if INDEXED:
        row, token = tl.load(row_index + tl.program_id(1)), tl.load(token_index + tl.program_id(1))
        if token < 0:
            return
    slot = tl.load(slots + row)
    past = tails + (slot * (WIDTH - 1) + tap) * channels + channel
    new = tl.load(qkvz + token * qkvz_stride + channel, mask=live, other=0.0).to(tl.float32)  # [1, BLOCK]
    old = tl.load(past, mask=live & (tap < WIDTH - 1), other=0.0).to(tl.float32)  # [TAPS, BLOCK]
    inputs = tl.where(tap == WIDTH - 1, new, old)
    total = tl.sum(inputs * taps, 0)
    value = total * sigmoid(total)
    norm = tl.rsqrt(tl.sum(value * value) + NORM_EPS)
    value *= tl.where(is_key, tl.where(part < KEY_HEADS, norm * scale, norm), 1.0)
    row_of_mixed = mixed + tl.program_id(1).to(tl.int64) * channels + first
    tl.store(row_of_mixed + tl.arange(0, BLOCK), value, mask=tl.arange(0, BLOCK) < width)
    if WIDTH > 1:
        tl.debug_barrier()  # all threads have read the tails
        store(past - channels, inputs, live & (tap > 0) & (tap < WIDTH))


@triton.jit(do_not_specialize=["first_row", "first_token"])
def _decode(
    qkvz, ab, mixed, a_log, dt_bias, norm, states, slots, row_index, token_index, out,
    first_row, first_token, channels, qkvz_stride, ab_stride, eps,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, INDEXED: tl.constexpr, EARLY: tl.constexpr,
):
    """One value head of one row. X [BV, BK] is its S^T.

    All but `mixed` is older than the convolution, and read at once: past the first cache, which the wait brings up to date.
    """
    let_next_start(EARLY)
    head, row, token = tl.program_id(0), first_row + tl.program_id(1), (first_token + tl.program_id(1)).to(tl.int64)
    if INDEXED:
        row = tl.load(row_index + tl.program_id(1), cache_modifier=".cg")
        token = tl.load(token_index + tl.program_id(1), cache_modifier=".cg")
    dv, dk = tl.arange(0, BV), tl.arange(0, BK)
    live, key_live = (dv < DV) & (token >= 0), dk < DK
    token = tl.maximum(token, 0)
    slot = tl.load(slots + row, cache_modifier=".cg")
    at = states + (slot * HEADS + head) * (DV * DK) + (dv[:, None] * DK + dk[None, :])
    there = live[:, None] & key_live[None, :]
    stored = tl.load(at, mask=there, other=0.0, cache_modifier=".cg")
    gates = ab + token * ab_stride + head
    a = tl.load(gates, cache_modifier=".cg").to(tl.float32)
    b = tl.load(gates + HEADS, cache_modifier=".cg").to(tl.float32)
    keep = tl.exp(log_decay(a, tl.load(a_log + head).to(tl.float32), tl.load(dt_bias + head).to(tl.float32)))
    gate = qkvz + token * qkvz_stride + channels + head * DV + dv
    z = tl.load(gate, mask=live, other=0.0, cache_modifier=".cg").to(tl.float32)
    weight = tl.load(norm + dv, mask=live, other=0.0).to(tl.float32)
    await_previous(EARLY)
    key_head = head // (HEADS // KEY_HEADS)
    vectors = mixed + tl.program_id(1).to(tl.int64) * channels
    q = tl.load(vectors + key_head * DK + dk, mask=key_live, other=0.0)
    k = tl.load(vectors + (KEY_HEADS + key_head) * DK + dk, mask=key_live, other=0.0)
    v = tl.load(vectors + 2 * KEY_HEADS * DK + head * DV + dv, mask=live, other=0.0)

    state = stored.to(tl.float32) * keep
    d = sigmoid(b) * (v - tl.sum(state * k[None, :], 1))
    o = tl.sum(state * q[None, :], 1) + tl.sum(k * q) * d
    store(at, state + d[:, None] * k[None, :], there)
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
        way = cuda.decode if cuda.suits(qkvz, weights, tails, states, singles) else decode
        way(qkvz, ab, weights, tails, states, slots, singles, out)
    return out


def _long_rows(
    qkvz: Tensor, ab: Tensor, weights: MixWeights, tails: Tensor, states: Tensor, slots: Tensor, rows: PackedRows
) -> Tensor:
    """The tokens of rows of two tokens and more; the others' are undefined.

    What lies between the operations is fp16 where activations have 16 bits: a bf16's 8 bits in q and k would be the largest
    error of the whole.
    """
    channels = weights.conv.shape[0]
    if prefill.suits(qkvz, weights, tails, states):
        y = prefill.convolved_rule(qkvz, ab, weights, tails, states, slots, rows)
    else:
        between = torch.float32 if qkvz.dtype == torch.float32 else torch.float16
        qkv = causal_conv1d(qkvz[:, :channels], weights.conv, tails, slots, rows, 2, between)
        (q, k, v), (a, b) = split_qkv(qkv, states), split_gates(ab)
        y = gated_delta_rule(q, k, v, a, b, weights.a_log, weights.dt_bias, states, slots, rows, shortest=2)
    return gated_rms_norm(y, qkvz[:, channels:].view(y.shape), weights.norm, weights.eps, qkvz.dtype).flatten(1)


def decode(
    qkvz: Tensor, ab: Tensor, weights: MixWeights, tails: Tensor, states: Tensor, slots: Tensor, singles: RowGroup, out: Tensor,
    num_warps: int = 4, maxnreg: int | None = None,
) -> None:
    """Writes the rows of one token into out [T, HV DV]. Rows of a captured graph must be neighbours: then nothing is read."""
    channels, width = weights.conv.shape
    _, heads, value_dim, key_dim = states.shape
    key_heads = (channels - heads * value_dim) // (2 * key_dim)
    key_block, value_block = triton.next_power_of_2(key_dim), triton.next_power_of_2(value_dim)
    indexed = isinstance(singles.rows, Tensor)
    first_row, first_token = (0 if isinstance(at, Tensor) else at.start for at in (singles.rows, singles.at))
    row_index, token_index = (at if isinstance(at, Tensor) else slots for at in (singles.rows, singles.at))
    mixed = torch.empty((singles.count, channels), dtype=torch.float32, device=qkvz.device)
    _convolve_token[2 * key_heads + heads, singles.count](
        qkvz, weights.conv, tails, slots, row_index, token_index, mixed, first_row, first_token, channels, qkvz.stride(0),
        *weights.conv.stride(), key_dim**-0.5, key_heads, heads, key_dim, value_dim, width, triton.next_power_of_2(width),
        max(key_block, value_block), indexed, num_warps=1, **early(out.device),
    )
    _decode[heads, singles.count](
        qkvz, ab, mixed, weights.a_log, weights.dt_bias, weights.norm, states, slots, row_index, token_index, out,
        first_row, first_token, channels, qkvz.stride(0), ab.stride(0), weights.eps,
        key_heads, heads, key_dim, value_dim, key_block, value_block, indexed, num_warps=num_warps, maxnreg=maxnreg,
        **early(out.device),
    )


def _variants(dtype: str, state: str, indexed: bool) -> tuple[Variant, ...]:
    """Qwen3.5's shape."""
    known = dict.fromkeys(("qkvz", "ab", "conv", "tails", "out"), f"*{dtype}") | {"states": f"*{state}"}
    known |= dict.fromkeys(("mixed", "a_log", "dt_bias", "norm"), "*fp32")
    known |= dict.fromkeys(("slots", "row_index", "token_index"), "*i64")
    known |= dict.fromkeys(("channels", "qkvz_stride", "ab_stride", "tap_stride"), "i32")
    aligned = tuple(known)
    known |= {"first_row": "i32", "first_token": "i32", "scale": "fp32", "eps": "fp32"}
    shape: dict[str, object] = {
        "KEY_HEADS": 16, "HEADS": 48, "DK": 128, "DV": 128, "WIDTH": 4, "TAPS": 4, "BLOCK": 128, "BK": 128, "BV": 128,
        "INDEXED": indexed, "channel_stride": 1,
    }

    def variant(name: str, kernel: Any, num_warps: int, reads_early: tuple[str, ...]) -> Variant:
        signature = {arg: known[arg] for arg in kernel.arg_names if arg in known}
        constants = {arg: shape[arg] for arg in kernel.arg_names if arg in shape}
        chosen = tuple(arg for arg in aligned if arg in signature)
        name = f"{name}-{dtype}-{state}{'-indexed' if indexed else ''}"
        return Variant(
            name, kernel, signature, constants, num_warps=num_warps, aligned=chosen, early=True, reads_early=reads_early
        )

    older = ("qkvz", "ab", "a_log", "dt_bias", "norm", "states", "slots", *(("row_index", "token_index") if indexed else ()))
    return variant("convolve", _convolve_token, 1, ("conv",)), variant("decode", _decode, 4, older)


_TYPES = (("bf16", "fp16"), ("bf16", "fp32"), ("fp16", "fp16"), ("fp32", "fp32"))
VARIANTS = (
    *(variant for types in _TYPES for variant in _variants(*types, indexed=False)), *_variants("bf16", "fp16", indexed=True)
)
