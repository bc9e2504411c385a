"""The gated delta rule in chunks on tensor cores, over rows of any length, in two launches.

The first prepares every chunk of every row side by side: unit keys and queries, the cumulated decay c, and with D_ij =
exp(c_i - c_j) for i >= j the triangular matrices M = (I + strict_lower(diag(beta) K K^T * D))^-1 diag(beta) and P = Q K^T * D.
The second walks through the chunks of a row with a part of one head's state X = S^T in registers:

    d = M (V - e^c K S);  O = e^c Q S + P d;  S <- e^{c_end} S + (e^{c_end - c} K)^T d

in transposed form, so that each product's result is the next one's left operand without leaving the registers. Products are
of fp16 (11 bits, where bf16 has 8) with fp32 sums, for 16-bit tensors; keys are unit vectors and d is of the size of v.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.gated_delta_rule.triton.tiles import (
    NORM_EPS,
    PRECISION,
    log_decay,
    pair_decay,
    sigmoid,
    unit_lower_inverse,
)
from headrace.kernels.rows import PackedRows
from headrace.kernels.tile import dot, store
from headrace.kernels.variant import Variant


@triton.jit
def _prepare(
    q, k, a, b, a_log, dt_bias, pieces, unit_q, unit_k, solve, within, decay, q_stride, k_stride, a_stride, b_stride, scale,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DK: tl.constexpr, SIZE: tl.constexpr, BK: tl.constexpr, OPERAND: tl.constexpr,
):
    """One chunk of one value head; the first head of a key head writes that one's unit vectors [M, KEY_HEADS, SIZE, BK]."""
    piece, head = tl.program_id(1).to(tl.int64), tl.program_id(0)
    key_head = head // (HEADS // KEY_HEADS)
    entry = pieces + 4 * piece
    start, tokens, before = tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    t, dk = tl.arange(0, SIZE), tl.arange(0, BK)
    live = before + t < tokens
    token = (start + before + t).to(tl.int64)
    mask = live[:, None] & (dk < DK)[None, :]
    column = (key_head * DK + dk)[None, :]
    keys = tl.load(k + token[:, None] * k_stride + column, mask=mask, other=0.0).to(tl.float32)
    queries = tl.load(q + token[:, None] * q_stride + column, mask=mask, other=0.0).to(tl.float32)
    keys = (keys * tl.rsqrt(tl.sum(keys * keys, 1) + NORM_EPS)[:, None]).to(OPERAND)
    queries = (queries * (tl.rsqrt(tl.sum(queries * queries, 1) + NORM_EPS) * scale)[:, None]).to(OPERAND)
    if head % (HEADS // KEY_HEADS) == 0:
        first = (piece * KEY_HEADS + key_head) * SIZE * BK
        at = t[:, None] * BK + dk[None, :]
        tl.store(unit_k + first + at, keys)
        tl.store(unit_q + first + at, queries)
    gate = tl.load(a + token * a_stride + head, mask=live, other=0.0).to(tl.float32)
    rate = tl.load(b + token * b_stride + head, mask=live, other=0.0).to(tl.float32)
    g = log_decay(gate, tl.load(a_log + head).to(tl.float32), tl.load(dt_bias + head).to(tl.float32))
    c = tl.cumsum(tl.where(live, g, 0.0), 0)
    beta = tl.where(live, sigmoid(rate), 0.0)
    i, j = t[:, None], t[None, :]
    line = (piece * HEADS + head) * SIZE
    square = i * SIZE + j
    pair = pair_decay(c, i >= j)
    zero = tl.zeros((SIZE, SIZE), tl.float32)
    tl.store(within + line * SIZE + square, (dot(queries, tl.trans(keys), zero, PRECISION) * pair).to(OPERAND))
    system = tl.where(i > j, dot(keys, tl.trans(keys), zero, PRECISION) * pair * beta[:, None], 0.0)
    inverse = unit_lower_inverse(system, 6 if SIZE == 64 else 4, OPERAND)
    tl.store(solve + line * SIZE + square, (inverse * beta[None, :]).to(OPERAND))
    tl.store(decay + line + t, c)


@triton.jit
def _walk(
    v, out, states, slots, rows, unit_q, unit_k, solve, within, decay, v_stride,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, SIZE: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, OPERAND: tl.constexpr,
):
    """All chunks of one row for BV of one head's DV value dimensions. X [BV, BK] is that part of S^T."""
    head = tl.program_id(1)
    key_head = head // (HEADS // KEY_HEADS)
    entry = rows + 4 * tl.program_id(2)
    row, start, tokens, piece = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    dv, dk, t = tl.program_id(0) * BV + tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, SIZE)
    at = states + ((tl.load(slots + row) * HEADS + head) * DV + dv[:, None]) * DK + dk[None, :]
    there = (dv < DV)[:, None] & (dk < DK)[None, :]
    x = tl.load(at, mask=there, other=0.0).to(tl.float32)
    first = (piece.to(tl.int64) * KEY_HEADS + key_head) * SIZE * BK
    line = (piece.to(tl.int64) * HEADS + head) * SIZE
    unit, square = t[:, None] * BK + dk[None, :], t[:, None] * SIZE + t[None, :]
    for before in range(0, tokens, SIZE):
        keys, queries = tl.load(unit_k + first + unit), tl.load(unit_q + first + unit)
        c, end = tl.load(decay + line + t), tl.load(decay + line + SIZE - 1)
        live = (dv < DV)[:, None] & (before + t < tokens)[None, :]
        token = (start + before).to(tl.int64)
        read = v + token * v_stride + head * DV
        values = tl.load(read + t[None, :] * v_stride + dv[:, None], mask=live, other=0.0).to(tl.float32)  # [BV, SIZE]
        zero = tl.zeros((BV, SIZE), tl.float32)
        known = dot(x.to(OPERAND), tl.trans(keys), zero, PRECISION)
        past = tl.exp(c)[None, :]
        rest = (values - past * known).to(OPERAND)
        d = dot(rest, tl.trans(tl.load(solve + line * SIZE + square)), zero, PRECISION)
        o = dot(x.to(OPERAND), tl.trans(queries), zero, PRECISION) * past
        o = dot(d.to(OPERAND), tl.trans(tl.load(within + line * SIZE + square)), o, PRECISION)
        x = dot((d * tl.exp(end - c)[None, :]).to(OPERAND), keys, x * tl.exp(end), PRECISION)
        store(out + (token * HEADS + head) * DV + t[None, :] * (HEADS * DV) + dv[:, None], o, live)
        first += KEY_HEADS * SIZE * BK
        line += HEADS * SIZE
    store(at, x, there)


@dataclass(frozen=True, slots=True)
class Tiles:
    """size: tokens of a chunk. value_columns: value dimensions of a walking program."""

    size: int
    key_columns: int
    value_columns: int
    prepare_warps: int
    walk_warps: int
    walk_stages: int


def choose_tiles(key_dim: int, value_dim: int, dtype: torch.dtype) -> Tiles:
    """float32 has chunks of 16: its products are not for tensor cores, and its tiles twice as large."""
    key_columns, value_columns = (max(16, triton.next_power_of_2(dim)) for dim in (key_dim, value_dim))
    if dtype == torch.float32:
        return Tiles(16, key_columns, 16, 4, 8, 1)
    return Tiles(64, key_columns, min(32, value_columns), 4, 4, 2)


def workspace_bytes(pieces: int, key_heads: int, value_heads: int, key_dim: int, tiles: Tiles, itemsize: int = 2) -> int:
    """Of a call on `pieces` chunks, at most tokens / size + rows of them: of 16 key and 48 value heads, 21 KB a token."""
    unit = 2 * key_heads * tiles.key_columns * itemsize
    square = value_heads * (2 * tiles.size * itemsize + 4)
    return pieces * tiles.size * (unit + square)


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, states: Tensor, slots: Tensor,
    rows: PackedRows, shortest: int = 1, tiles: Tiles | None = None,
) -> Tensor:
    """As the public function; rows with fewer than `shortest` tokens are left alone, and undefined in what is returned."""
    (_, key_heads, key_dim), (_, heads, value_dim) = k.shape, v.shape
    assert all(x.stride(2) == 1 and x.stride(1) == x.shape[2] for x in (q, k, v)) and states.is_contiguous()
    tiles = tiles or choose_tiles(key_dim, value_dim, v.dtype)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    table = rows.pieces(tiles.size, shortest)
    if table is None:
        return out
    pieces, size, width = len(table.pieces), tiles.size, tiles.key_columns
    operand = torch.float32 if v.dtype == torch.float32 else torch.float16
    unit_q, unit_k = torch.empty((2, pieces, key_heads, size, width), dtype=operand, device=v.device)
    solve, within = torch.empty((2, pieces, heads, size, size), dtype=operand, device=v.device)
    decay = torch.empty((pieces, heads, size), dtype=torch.float32, device=v.device)
    kind = tl.float32 if operand == torch.float32 else tl.float16
    _prepare[heads, pieces](
        q, k, a, b, a_log, dt_bias, table.pieces, unit_q, unit_k, solve, within, decay,
        q.stride(0), k.stride(0), a.stride(0), b.stride(0), key_dim**-0.5,
        key_heads, heads, key_dim, size, width, kind, num_warps=tiles.prepare_warps,
    )
    grid = (triton.cdiv(value_dim, tiles.value_columns), heads, len(table.rows))
    _walk[grid](
        v, out, states, slots, table.rows, unit_q, unit_k, solve, within, decay, v.stride(0),
        key_heads, heads, key_dim, value_dim, size, width, tiles.value_columns, kind,
        num_warps=tiles.walk_warps, num_stages=tiles.walk_stages,
    )
    return out


def _variants(dtype: str, state: str) -> tuple[Variant, ...]:
    """Qwen3.5's shape: heads of 128."""
    wide = dtype == "fp32"
    tiles = choose_tiles(128, 128, torch.float32 if wide else torch.float16)
    constants: dict[str, object] = {"KEY_HEADS": 16, "HEADS": 48, "DK": 128, "SIZE": tiles.size, "BK": tiles.key_columns}
    constants["OPERAND"] = tl.float32 if wide else tl.float16
    tables = dict.fromkeys(("unit_q", "unit_k", "solve", "within"), "*fp32" if wide else "*fp16") | {"decay": "*fp32"}
    between = "*fp32" if wide else "*fp16"  # what gated_delta_mix keeps between its operations
    prepare = {"q": between, "k": between, "a": f"*{dtype}", "b": f"*{dtype}"} | tables
    prepare |= {"a_log": "*fp32", "dt_bias": "*fp32", "pieces": "*i32"}
    prepare |= dict.fromkeys(("q_stride", "k_stride", "a_stride", "b_stride"), "i32")
    walk = {"v": between, "out": between, "states": f"*{state}", "slots": "*i64", "rows": "*i32", "v_stride": "i32"}
    walk |= tables
    return (
        Variant(
            f"prepare-{dtype}-{state}", _prepare, prepare | {"scale": "fp32"}, constants,
            num_warps=tiles.prepare_warps, aligned=tuple(prepare),
        ),
        Variant(
            f"walk-{dtype}-{state}", _walk, walk, constants | {"DV": 128, "BV": tiles.value_columns},
            num_warps=tiles.walk_warps, num_stages=tiles.walk_stages, aligned=tuple(walk),
        ),
    )


_TYPES = (("bf16", "fp16"), ("bf16", "fp32"), ("fp16", "fp16"), ("fp32", "fp32"))
VARIANTS = tuple(variant for types in _TYPES for variant in _variants(*types))
