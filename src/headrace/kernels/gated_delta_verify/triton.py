"""Verification with one pass over the states, in three launches, and fold: for what cuda.py does not take.

The first launch convolves a row's at most 16 tokens and makes, for each value head, the triangular matrices of the chunk
form (see gated_delta_rule.triton), in which certain tokens and drafts are two blocks that know nothing of each other. In
the second a program holds a part of one value head's state X = S^T: it folds the pending drafts, runs the certain tokens,
writes X, runs the drafts, and moves the convolution's inputs on, which nobody reads by then but itself. The third is the
norm; it is part of the second where that holds whole heads. Every row has the same tiles, with what it lacks masked, and
fold computes in the tiles of the second launch: the same bits.

Workspace a row, in 16 bits: 2 x 16 x key heads x DK + 16 x value heads x (2 DV + 32), and 16 x value heads x 4 bytes; with 16
key and 48 value heads of 128, 577 KB.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.gated_delta_mix.weights import MixWeights
from headrace.kernels.gated_delta_rule.triton.tiles import NORM_EPS, PRECISION, log_decay, sigmoid, unit_lower_inverse
from headrace.kernels.gated_delta_verify.ring import MAX_TOKENS, Ring
from headrace.kernels.gated_rms_norm.triton import gated_rms_norm
from headrace.kernels.tile import dot, narrow, store
from headrace.kernels.variant import Variant

TOKENS = tl.constexpr(MAX_TOKENS)


@triton.jit
def _inputs_at(x, drafts, past, s, pending, channel, mask, x_stride, channels, WIDTH: tl.constexpr):
    """Inputs at places s [N, 1]: the row's own from 0 on, the pending drafts' before them, the tail's before those."""
    place = pending + s
    older = tl.where(place >= 0, drafts + place * channels, past + (place + WIDTH - 1) * channels)
    source = tl.where(s >= 0, x + s * x_stride, older)
    return tl.load(source + channel, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _convolve(
    x, weight, drafts, past, t, pending, channel, mask, x_stride, channels, channel_stride, tap_stride, WIDTH: tl.constexpr
):
    """silu of the convolution at tokens t [TOKENS, 1] of channels [1, B]."""
    total = tl.zeros(mask.shape, tl.float32)
    for w in tl.static_range(WIDTH):
        value = _inputs_at(x, drafts, past, t + (w - WIDTH + 1), pending, channel, mask, x_stride, channels, WIDTH)
        total += value * tl.load(weight + channel * channel_stride + w * tap_stride, mask=mask, other=0.0).to(tl.float32)
    return total * sigmoid(total)


@triton.jit
def _move_inputs(
    x, drafts, other, past, count, sure, pending, channel, inside, x_stride, channels, WIDTH: tl.constexpr, TAPS: tl.constexpr
):
    """Moves tails on by the pending drafts and `sure` tokens; keeps the drafts' inputs in the ring's other half."""
    t = tl.arange(0, TOKENS)[:, None]
    at = channel[None, :]
    mask = (t >= sure) & (t < count) & inside[None, :]
    tl.store(other + (t - sure) * channels + at, tl.load(x + t * x_stride + at, mask=mask), mask=mask)
    if WIDTH > 1:
        tap = tl.arange(0, TAPS)[:, None]
        kept = (tap < WIDTH - 1) & inside[None, :]
        value = _inputs_at(x, drafts, past, tap + (sure - WIDTH + 1), pending, at, kept, x_stride, channels, WIDTH)
        tl.debug_barrier()  # all threads have read what is overwritten
        store(past + tap * channels + at, value, kept)


@triton.jit
def _prepare(
    qkvz, ab, conv, a_log, dt_bias, tails, slots, offsets, certain, pending, parity, ring_keys, ring_decays, ring_inputs,
    unit_q, unit_k, values, solve, within, decay, x_stride, ab_stride, channels, channel_stride, tap_stride, scale,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, WIDTH: tl.constexpr,
    DEPTH: tl.constexpr, BK: tl.constexpr, BLOCK: tl.constexpr, OPERAND: tl.constexpr,
):
    """One value head of a row. The first head of a key head writes what belongs to that one."""
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    key_head, is_first = head // (HEADS // KEY_HEADS), head % (HEADS // KEY_HEADS) == 0
    slot, first = tl.load(slots + row), tl.load(offsets + row)
    count, sure = tl.load(offsets + row + 1) - first, tl.load(certain + row)
    waiting, half = tl.load(pending + slot), tl.load(parity + slot)
    new = (slot * 2 + 1 - half) * DEPTH
    drafts = ring_inputs + (slot * 2 + half) * DEPTH * channels
    x, past = qkvz + first.to(tl.int64) * x_stride, tails + slot * (WIDTH - 1) * channels
    t, dv, dk = tl.arange(0, TOKENS)[:, None], tl.arange(0, BLOCK)[None, :], tl.arange(0, BK)[None, :]
    mask = (dv < DV) & (t < count)
    at = 2 * KEY_HEADS * DK + head * DV + dv
    v = _convolve(x, conv, drafts, past, t, waiting, at, mask, x_stride, channels, channel_stride, tap_stride, WIDTH)
    store(values + ((row * HEADS + head) * TOKENS + t) * DV + dv, v, dv < DV)

    mask = (dk < DK) & (t < count)
    q_at, k_at = key_head * DK + dk, (KEY_HEADS + key_head) * DK + dk
    q = _convolve(x, conv, drafts, past, t, waiting, q_at, mask, x_stride, channels, channel_stride, tap_stride, WIDTH)
    q = (q * (tl.rsqrt(tl.sum(q * q, 1) + NORM_EPS) * scale)[:, None]).to(OPERAND)
    k = _convolve(x, conv, drafts, past, t, waiting, k_at, mask, x_stride, channels, channel_stride, tap_stride, WIDTH)
    k *= tl.rsqrt(tl.sum(k * k, 1) + NORM_EPS)[:, None]
    kept = narrow(k, ring_keys.dtype.element_ty)
    k = tl.where(t >= sure, kept.to(tl.float32), k).to(OPERAND)
    if is_first:
        tl.store(ring_keys + ((new + t - sure) * KEY_HEADS + key_head) * DK + dk, kept, mask=mask & (t >= sure))
        unit = ((row * KEY_HEADS + key_head) * TOKENS + t) * BK + dk
        tl.store(unit_q + unit, q)
        tl.store(unit_k + unit, k)

    i, j = tl.arange(0, TOKENS)[:, None], tl.arange(0, TOKENS)[None, :]
    same = (i >= j) & ((i >= sure) == (j >= sure))
    gates = ab + first.to(tl.int64) * ab_stride + head
    rate, bias = tl.load(a_log + head).to(tl.float32), tl.load(dt_bias + head).to(tl.float32)
    g_row = log_decay(tl.load(gates + i * ab_stride, mask=i < count, other=0.0).to(tl.float32), rate, bias)
    g_column = log_decay(tl.load(gates + j * ab_stride, mask=j < count, other=0.0).to(tl.float32), rate, bias)
    c_row = tl.sum(tl.where(same & (j < count), g_column, 0.0), 1)  # [TOKENS] along i
    c_column = tl.sum(tl.where(tl.trans(same) & (i < count), g_row, 0.0), 0)  # the same sums along j
    gates += HEADS
    beta_row = sigmoid(tl.load(gates + i * ab_stride, mask=i < count, other=-float("inf")).to(tl.float32))
    beta_column = sigmoid(tl.load(gates + j * ab_stride, mask=j < count, other=-float("inf")).to(tl.float32))
    pair = tl.where(same, tl.exp(tl.minimum(c_row[:, None] - c_column[None, :], 0.0)), 0.0)
    zero = tl.zeros((TOKENS, TOKENS), tl.float32)
    line = (row * HEADS + head) * TOKENS
    square = line * TOKENS + i * TOKENS + j
    tl.store(within + square, (dot(q, tl.trans(k), zero, PRECISION) * pair).to(OPERAND))
    system = tl.where(i > j, dot(k, tl.trans(k), zero, PRECISION) * pair * beta_row, 0.0)
    tl.store(solve + square, (unit_lower_inverse(system, 4, OPERAND) * beta_column).to(OPERAND))
    n = tl.arange(0, TOKENS)
    tl.store(decay + line + n, c_row)
    tl.store(ring_decays + (new + n - sure) * HEADS + head, c_row, mask=(n >= sure) & (n < count))


@triton.jit
def _folded(
    x, keys, deltas, decays, count, dv, dk, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """X after `count` drafts. keys, deltas, decays: of one half and head."""
    j = tl.arange(0, TOKENS)
    there = j < count
    g = tl.load(decays + j * HEADS, mask=there, other=0.0).to(tl.float32)
    end = tl.sum(tl.where(j == count - 1, g, 0.0))
    weight = tl.where(there, tl.exp(end - g), 0.0)
    d = tl.load(deltas + j[None, :] * (HEADS * DV) + dv[:, None], mask=there[None, :] & (dv < DV)[:, None], other=0.0)
    k = tl.load(keys + j[:, None] * (KEY_HEADS * DK) + dk[None, :], mask=there[:, None] & (dk < DK)[None, :], other=0.0)
    weighted = (d.to(tl.float32) * weight[None, :]).to(OPERAND)
    return dot(weighted, k.to(tl.float32).to(OPERAND), x * tl.exp(end), PRECISION)


@triton.jit
def _step(
    qkvz, norm, tails, states, slots, offsets, certain, pending, parity, ring_keys, ring_deltas, ring_decays, ring_inputs,
    unit_q, unit_k, values, solve, within, decay, out, x_stride, channels, eps,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr,
    DEPTH: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, OPERAND: tl.constexpr,
):
    """BV of one value head's dimensions, of one row. The norm is left to another launch where those are not all."""
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    key_head = head // (HEADS // KEY_HEADS)
    slot, first = tl.load(slots + row), tl.load(offsets + row)
    count, sure = tl.load(offsets + row + 1) - first, tl.load(certain + row)
    waiting, half = tl.load(pending + slot), tl.load(parity + slot)
    dv, dk, t = tl.program_id(2) * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, TOKENS)
    at = states + (slot * HEADS + head) * (DV * DK) + (dv[:, None] * DK + dk[None, :])
    there = (dv < DV)[:, None] & (dk < DK)[None, :]
    x = tl.load(at, mask=there, other=0.0).to(tl.float32)
    old, new = (slot * 2 + half) * DEPTH, (slot * 2 + 1 - half) * DEPTH
    x = _folded(
        x, ring_keys + (old * KEY_HEADS + key_head) * DK, ring_deltas + (old * HEADS + head) * DV,
        ring_decays + old * HEADS + head, waiting, dv, dk, HEADS, KEY_HEADS, DK, DV, OPERAND,
    )
    x = narrow(x, states.dtype.element_ty).to(tl.float32)

    line = (row * HEADS + head) * TOKENS
    tile = (row * KEY_HEADS + key_head) * TOKENS * BK + (t[:, None] * BK + dk[None, :])
    keys, queries = tl.load(unit_k + tile), tl.load(unit_q + tile)
    square = line * TOKENS + (t[:, None] * TOKENS + t[None, :])
    solve_t = tl.trans(tl.load(solve + square))
    in_head = dv[:, None] < DV
    v = tl.load(values + line * DV + (t[None, :] * DV + dv[:, None]), mask=in_head, other=0.0).to(tl.float32)  # [BV, TOKENS]
    c = tl.load(decay + line + t)
    past = tl.exp(c)[None, :]
    zero = tl.zeros((BV, TOKENS), tl.float32)
    is_sure = t < sure

    operand = x.to(OPERAND)
    rest = v - past * dot(operand, tl.trans(keys), zero, PRECISION)
    o = dot(operand, tl.trans(queries), zero, PRECISION) * past
    d = tl.where(is_sure[None, :], dot(rest.to(OPERAND), solve_t, zero, PRECISION), 0.0)
    end = tl.sum(tl.where(t == sure - 1, c, 0.0))
    weight = tl.where(is_sure, tl.exp(tl.minimum(end - c, 0.0)), 0.0)
    x = dot((d * weight[None, :]).to(OPERAND), keys, x * tl.exp(end), PRECISION)
    x = narrow(x, states.dtype.element_ty)
    tl.store(at, x, mask=there)

    operand = x.to(OPERAND)
    rest = v - past * dot(operand, tl.trans(keys), zero, PRECISION)
    o = tl.where(is_sure[None, :], o, dot(operand, tl.trans(queries), zero, PRECISION) * past)
    drafted = narrow(dot(rest.to(OPERAND), solve_t, zero, PRECISION), ring_deltas.dtype.element_ty)
    draft = (t >= sure) & (t < count)
    kept = ring_deltas + ((new + t - sure)[None, :] * HEADS + head) * DV + dv[:, None]
    tl.store(kept, drafted, mask=draft[None, :] & in_head)
    d = tl.where(draft[None, :], drafted.to(tl.float32), d)
    o = dot(d.to(OPERAND), tl.trans(tl.load(within + square)), o, PRECISION)

    live = (t < count)[None, :] & in_head
    if BV >= DV:
        gate = qkvz + first.to(tl.int64) * x_stride + channels + head * DV
        z = tl.load(gate + t[None, :] * x_stride + dv[:, None], mask=live, other=0.0).to(tl.float32)
        scale = tl.load(norm + dv, mask=dv < DV, other=0.0).to(tl.float32)
        o *= tl.rsqrt(tl.sum(o * o, 0) / DV + eps)[None, :] * scale[:, None] * z * sigmoid(z)
    store(out + (first.to(tl.int64) * HEADS + head) * DV + (t[None, :] * (HEADS * DV) + dv[:, None]), o, live)

    drafts, other = ring_inputs + old * channels, ring_inputs + new * channels
    x_at, tail = qkvz + first.to(tl.int64) * x_stride, tails + slot * (WIDTH - 1) * channels
    v_at = 2 * KEY_HEADS * DK + head * DV + dv
    _move_inputs(x_at, drafts, other, tail, count, sure, waiting, v_at, dv < DV, x_stride, channels, WIDTH, TAPS)
    if (head % (HEADS // KEY_HEADS) == 0) & (tl.program_id(2) == 0):
        for part in tl.static_range(2):
            at_part = (part * KEY_HEADS + key_head) * DK + dk
            _move_inputs(x_at, drafts, other, tail, count, sure, waiting, at_part, dk < DK, x_stride, channels, WIDTH, TAPS)


@triton.jit
def _fold_states(
    states, ring_keys, ring_deltas, ring_decays, parity, source, count, target,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, DEPTH: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, OPERAND: tl.constexpr,
):
    """BV of one value head's dimensions, of one pair of slots."""
    head, pair = tl.program_id(0), tl.program_id(1)
    slot = tl.load(source + pair)
    dv, dk = tl.program_id(2) * BV + tl.arange(0, BV), tl.arange(0, BK)
    element = dv[:, None] * DK + dk[None, :]
    there = (dv < DV)[:, None] & (dk < DK)[None, :]
    x = tl.load(states + (slot * HEADS + head) * (DV * DK) + element, mask=there, other=0.0).to(tl.float32)
    old, key_head = (slot * 2 + tl.load(parity + slot)) * DEPTH, head // (HEADS // KEY_HEADS)
    x = _folded(
        x, ring_keys + (old * KEY_HEADS + key_head) * DK, ring_deltas + (old * HEADS + head) * DV,
        ring_decays + old * HEADS + head, tl.load(count + pair), dv, dk, HEADS, KEY_HEADS, DK, DV, OPERAND,
    )
    store(states + (tl.load(target + pair) * HEADS + head) * (DV * DK) + element, x, there)


@triton.jit
def _fold_tails(
    tails, ring_inputs, parity, source, count, target, channels,
    WIDTH: tl.constexpr, TAPS: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr,
):
    pair, channel = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    slot, waiting = tl.load(source + pair), tl.load(count + pair)
    tap = tl.arange(0, TAPS)[:, None]
    kept = (tap < WIDTH - 1) & (channel < channels)
    drafts = ring_inputs + (slot * 2 + tl.load(parity + slot)) * DEPTH * channels
    past = tails + slot * (WIDTH - 1) * channels
    value = _inputs_at(tails, drafts, past, tap - (WIDTH - 1), waiting, channel, kept, 0, channels, WIDTH)
    tl.debug_barrier()  # the target may be the source: all threads have read it
    store(tails + (tl.load(target + pair) * (WIDTH - 1) + tap) * channels + channel, value, kept)


class Form(NamedTuple):
    """columns: value dimensions of a program that holds a state; with fewer than a head has, the norm is a third launch."""

    columns: int
    warps: int
    prepare_warps: int


FORM = Form(64, 4, 4)
_FOLD_CHANNELS = 256


def _constants(states: Tensor, ring: Ring) -> dict[str, Any]:
    """The constants that the state's kernels share; that they agree makes fold's bits a step's."""
    _, heads, value_dim, key_dim = states.shape
    return {
        "KEY_HEADS": ring.keys.shape[3], "HEADS": heads, "DK": key_dim, "DV": value_dim, "DEPTH": ring.keys.shape[2],
        "BK": max(16, triton.next_power_of_2(key_dim)), "BV": max(16, triton.next_power_of_2(value_dim)),
        "OPERAND": tl.float32 if ring.keys.dtype == torch.float32 else tl.float16,
    }


def gated_delta_verify(
    qkvz: Tensor, ab: Tensor, weights: MixWeights, tails: Tensor, states: Tensor, ring: Ring, pending: Tensor, parity: Tensor,
    slots: Tensor, offsets: Tensor, certain: Tensor, longest: int = MAX_TOKENS, form: Form = FORM,
) -> Tensor:
    assert qkvz.stride(1) == 1 and ab.stride(1) == 1 and tails.is_contiguous() and states.is_contiguous()
    assert qkvz.dtype == tails.dtype == ring.inputs.dtype and ring.keys.shape[2] <= MAX_TOKENS
    shape = _constants(states, ring)
    (channels, width), rows, heads, key_heads = weights.conv.shape, len(slots), states.shape[1], ring.keys.shape[3]
    operand = torch.float32 if shape["OPERAND"] == tl.float32 else torch.float16

    def scratch(*size: int, dtype: torch.dtype = operand) -> Tensor:
        return torch.empty(size, dtype=dtype, device=qkvz.device)

    unit_q, unit_k = scratch(2, rows, key_heads, MAX_TOKENS, shape["BK"])
    values = scratch(rows, heads, MAX_TOKENS, states.shape[2])
    solve, within = scratch(2, rows, heads, MAX_TOKENS, MAX_TOKENS)
    decay = scratch(rows, heads, MAX_TOKENS, dtype=torch.float32)
    _prepare[heads, rows](
        qkvz, ab, weights.conv, weights.a_log, weights.dt_bias, tails, slots, offsets, certain, pending, parity,
        ring.keys, ring.decays, ring.inputs, unit_q, unit_k, values, solve, within, decay,
        qkvz.stride(0), ab.stride(0), channels, *weights.conv.stride(), states.shape[3] ** -0.5,
        WIDTH=width, BLOCK=shape["BV"], **{name: shape[name] for name in shape if name != "BV"}, num_warps=form.prepare_warps,
    )
    block = min(form.columns, shape["BV"])
    out = scratch(len(qkvz), heads * states.shape[2], dtype=qkvz.dtype if block >= shape["DV"] else operand)
    _step[heads, rows, triton.cdiv(shape["DV"], block)](
        qkvz, weights.norm, tails, states, slots, offsets, certain, pending, parity,
        ring.keys, ring.deltas, ring.decays, ring.inputs, unit_q, unit_k, values, solve, within, decay, out,
        qkvz.stride(0), channels, weights.eps, WIDTH=width, TAPS=_taps(width), **shape | {"BV": block},
        num_warps=form.warps,
    )
    if block < shape["DV"]:
        z = qkvz[:, channels:].view(len(qkvz), heads, shape["DV"])
        return gated_rms_norm(out.view(z.shape), z, weights.norm, weights.eps, qkvz.dtype).flatten(1)
    return out


def fold(
    tails: Tensor, states: Tensor, ring: Ring, parity: Tensor, source: Tensor, count: Tensor, target: Tensor,
    form: Form = FORM,
) -> None:
    shape, pairs, (_, taps, channels) = _constants(states, ring), len(source), tails.shape
    if not pairs:
        return
    block = min(form.columns, shape["BV"])
    _fold_states[states.shape[1], pairs, triton.cdiv(shape["DV"], block)](
        states, ring.keys, ring.deltas, ring.decays, parity, source, count, target, **shape | {"BV": block},
        num_warps=form.warps,
    )
    if taps:
        _fold_tails[triton.cdiv(channels, _FOLD_CHANNELS), pairs](
            tails, ring.inputs, parity, source, count, target, channels,
            taps + 1, _taps(taps + 1), ring.keys.shape[2], _FOLD_CHANNELS, num_warps=4,
        )


def _taps(width: int) -> int:
    return 1 << max(0, width - 2).bit_length()


def _variants(dtype: str, state: str) -> tuple[Variant, ...]:
    """Qwen3.5's shape with at most 7 drafts: heads of 128."""
    shape: dict[str, object] = {"KEY_HEADS": 16, "HEADS": 48, "DK": 128, "DV": 128, "DEPTH": 7, "BK": 128}
    shape |= {"OPERAND": tl.float16, "BV": FORM.columns}
    conv: dict[str, object] = {"WIDTH": 4, "TAPS": 4}
    rings = {"ring_keys": "*fp16", "ring_deltas": "*fp16", "ring_decays": "*fp32", "ring_inputs": f"*{dtype}"}
    where = {"slots": "*i64"} | dict.fromkeys(("offsets", "certain", "pending", "parity"), "*i32")
    scratch = dict.fromkeys(("unit_q", "unit_k", "solve", "within", "values"), "*fp16") | {"decay": "*fp32"}
    weights = {"conv": f"*{dtype}"} | dict.fromkeys(("a_log", "dt_bias", "norm"), "*fp32")
    known = rings | where | scratch | weights | {"states": f"*{state}"}
    known |= dict.fromkeys(("qkvz", "ab", "tails", "out"), f"*{dtype}")
    known |= {"source": "*i64", "target": "*i64", "count": "*i32"}
    known |= dict.fromkeys(("x_stride", "ab_stride", "channels", "tap_stride"), "i32")
    aligned = tuple(known)
    known |= {"scale": "fp32", "eps": "fp32"}

    def variant(name: str, kernel: Any, constants: dict[str, object], num_warps: int) -> Variant:
        signature = {arg: known[arg] for arg in kernel.arg_names if arg in known}
        chosen = tuple(arg for arg in aligned if arg in signature)
        constants = {arg: value for arg, value in constants.items() if arg in kernel.arg_names}
        return Variant(f"{name}-{dtype}-{state}", kernel, signature, constants, num_warps=num_warps, aligned=chosen)

    tails = conv | {"DEPTH": 7, "BLOCK": _FOLD_CHANNELS}
    return (
        variant("prepare", _prepare, shape | conv | {"BLOCK": 128, "channel_stride": 1}, FORM.prepare_warps),
        variant("step", _step, shape | conv, FORM.warps), variant("fold-states", _fold_states, shape, FORM.warps),
        variant("fold-tails", _fold_tails, tails, 4),
    )


_TYPES = (("bf16", "fp16"), ("bf16", "fp32"), ("fp16", "fp16"))
VARIANTS = tuple(variant for types in _TYPES for variant in _variants(*types))
