"""What both attention kernels do with one block of keys: device code.

Source of the online softmax: Milakov and Gimelshein, Online normalizer calculation for softmax (2018).
"""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.tile import INTERPRETED, dot, e4m3_over_256, narrow

FLOATS = tl.constexpr(0)
"""Pools of fp32, fp16 or bf16."""
INT8 = tl.constexpr(1)
E4M3 = tl.constexpr(2)


@triton.jit
def decode(codes, KIND: tl.constexpr, DOT: tl.constexpr, HERE: tl.constexpr, FIRST: tl.constexpr):
    """What a pool holds as operands of a product: int8 as it is, e4m3 as 1/256 of its value.

    HERE: for mma.sync, bytes become fp16 four at a time. A product of mma.sync has its second operand's columns in registers:
    FIRST, as they were loaded, before they are laid out for the product (the compiler moves no impure assembly), since fp16 is
    transposed on the way there where single bytes would be gathered. int8: a byte, its sign bit flipped, is the low half of the
    fp16 number 1024 + 128 + byte. e4m3: as `tile.e4m3_over_256`.
    """
    if KIND == FLOATS or DOT != tl.float16 or INTERPRETED or not HERE:
        return (e4m3_over_256(codes) if KIND == E4M3 else codes).to(DOT)
    elif KIND == INT8:
        return tl.inline_asm_elementwise(
            """{ .reg .b32 t, lo, hi, c;
            mov.b32 c, 0x64806480;
            xor.b32 t, $2, 0x80808080;
            prmt.b32 lo, t, 0x64646464, 0x4140;
            prmt.b32 hi, t, 0x64646464, 0x4342;
            sub.rn.f16x2 $0, lo, c;
            sub.rn.f16x2 $1, hi, c; }""",
            "=r,=r,r", [codes], dtype=tl.float16, is_pure=not FIRST, pack=4,
        )
    else:
        return tl.inline_asm_elementwise(
            """{ .reg .b32 lo, hi, t;
            prmt.b32 lo, $2, 0, 0x1404;
            prmt.b32 hi, $2, 0, 0x3424;
            shr.u32 t, lo, 1;
            and.b32 t, t, 0x3f803f80;
            lop3.b32 $0, lo, 0x80008000, t, 0xea;
            shr.u32 t, hi, 1;
            and.b32 t, t, 0x3f803f80;
            lop3.b32 $1, hi, 0x80008000, t, 0xea; }""",
            "=r,=r,r", [codes], dtype=tl.float16, is_pure=not FIRST, pack=4,
        )


@triton.jit
def find(table, first, end, kv_head, KV: tl.constexpr, BLOCK_N: tl.constexpr, PAGE: tl.constexpr):
    """Places [BLOCK_N] of the (token, head) vectors first ... in a pool: 2^31 of them are more than any card holds.

    Past the end: the last one again, masked later, but the row's own memory and finite.
    """
    tokens = tl.minimum(first + tl.arange(0, BLOCK_N), end - 1)
    return (tl.load(table + tokens // PAGE).to(tl.int32) * PAGE + tokens % PAGE) * KV + kv_head


@triton.jit
def fetch(pool, scales, places, D: tl.constexpr, BLOCK_D: tl.constexpr, KIND: tl.constexpr):
    """(vectors [N, BLOCK_D] at places of a pool, zeros past D; their scales [N] or, of floats, zero)."""
    dims = tl.arange(0, BLOCK_D)
    pointers = pool + places.to(tl.int64)[:, None] * D + dims[None, :]
    if BLOCK_D == D:
        vectors = tl.load(pointers)
    else:
        vectors = tl.load(pointers, mask=dims[None, :] < D, other=0)
    if KIND == FLOATS:
        return vectors, 0
    else:
        return vectors, tl.load(scales + places)


@triton.jit
def attend(
    acc, top, total, q, first, last, window, k, k_scales, v, v_scales, scale,
    KIND: tl.constexpr, GAIN: tl.constexpr, MASKED: tl.constexpr, WINDOWED: tl.constexpr, BYTES_HERE: tl.constexpr,
):
    """acc [M, BLOCK_D], top [M] and total [M] of the online softmax, after the keys from `first` on, given as fetched.

    q [M, BLOCK_D] in the products' type. MASKED: a query sees keys up to last [M] and, WINDOWED, from window [M] on; else all.
    scale includes log2(e). acc is of GAIN times the values.
    """
    k_operand = tl.trans(decode(k, KIND, q.dtype, BYTES_HERE, False))
    scores = dot(q, k_operand, tl.zeros((q.shape[0], k.shape[0]), tl.float32), "tf32x3")
    if KIND == FLOATS:
        unit = scale
    else:
        scores *= (k_scales.to(tl.float32) * scale)[None, :]
        unit = 256.0 if KIND == E4M3 else 1.0
    if MASKED:
        tokens = first + tl.arange(0, k.shape[0])
        seen = tokens[None, :] <= last[:, None]
        if WINDOWED:
            seen &= tokens[None, :] >= window[:, None]
        scores = tl.where(seen, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1) * unit)
    shift = tl.where(new_top == float("-inf"), 0.0, new_top) if MASKED else new_top
    weights = tl.exp2(scores * unit - shift[:, None])
    shrink = tl.exp2(top - shift)
    total = total * shrink + tl.sum(weights, 1)
    if KIND != FLOATS:
        weights *= (v_scales.to(tl.float32) * GAIN)[None, :]
    v = decode(v, KIND, q.dtype, BYTES_HERE, True)
    acc = dot(narrow(weights, v.dtype), v, acc * shrink[:, None], "tf32x3")
    return acc, new_top, total


@triton.jit
def load_queries(
    q, first_token, tokens, m, kv_head, KV: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    DOT: tl.constexpr,
):
    """Queries m [M] of a row, counted token by token and, within one, head by head of the key head's group."""
    dims = tl.arange(0, BLOCK_D)
    at = (first_token + m // GROUP).to(tl.int64) * (KV * GROUP) + kv_head * GROUP + m % GROUP
    alive = (m < tokens * GROUP)[:, None] & (dims < D)[None, :]
    return narrow(tl.load(q + at[:, None] * D + dims[None, :], mask=alive, other=0.0), DOT)


@triton.jit
def gated(y, gate, token, head, gate_token_stride, gate_head_stride, dims, alive):
    """y times the sigmoid of the gate of (token, head), in fp32."""
    at = token.to(tl.int64) * gate_token_stride + head * gate_head_stride
    logits = tl.load(gate + at[:, None] + dims[None, :], mask=alive, other=0.0).to(tl.float32)
    return y / (1.0 + tl.exp2(logits * -1.4426950408889634))


@triton.jit
def halves(x):
    """[M, 2 N] -> its left and its right [M, N]."""
    return tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


@triton.jit
def put_columns(
    out, y, gate, gate_token_stride, gate_head_stride, token, head, at, rows_alive, first, D: tl.constexpr, GATED: tl.constexpr
):
    """Write y [M, N], columns first ... first + N - 1 of the vectors at places `at` of out, gated."""
    dims = first + tl.arange(0, y.shape[1])
    alive = rows_alive[:, None] & (dims < D)[None, :]
    if GATED:
        y = gated(y, gate, token, head, gate_token_stride, gate_head_stride, dims, alive)
    tl.store(out + at[:, None] + dims[None, :], narrow(y, out.dtype.element_ty), mask=alive)


@triton.jit
def put_halves(out, y, gate, gate_token_stride, gate_head_stride, token, head, at, rows_alive, first, D: tl.constexpr):
    """As `put_columns`, one half after the other: barriers keep the compiler from loading all gates at once."""
    left, right = halves(y)
    tl.debug_barrier()
    put_columns(out, left, gate, gate_token_stride, gate_head_stride, token, head, at, rows_alive, first, D, True)
    tl.debug_barrier()
    put_columns(
        out, right, gate, gate_token_stride, gate_head_stride, token, head, at, rows_alive, first + y.shape[1] // 2, D, True
    )


@triton.jit
def put_queries(
    out, acc, total, gate, gate_token_stride, gate_head_stride, first_token, tokens, m, kv_head, unit,
    KV: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, GATED: tl.constexpr,
):
    """Write unit * acc [M, BLOCK_D] / total [M] of the row's queries m, gated, to out [T, H, D]."""
    token, head = first_token + m // GROUP, kv_head * GROUP + m % GROUP
    tokens_alive = m < tokens * GROUP
    at = (token.to(tl.int64) * (KV * GROUP) + head) * D
    # Queries past the row's end may see nothing.
    y = acc * (unit / tl.where(total == 0.0, 1.0, total))[:, None]
    if GATED and BLOCK_D >= 64:  # a quarter of the columns at a time: the gate of all of them does not fit the registers
        left, right = halves(y)
        put_halves(out, left, gate, gate_token_stride, gate_head_stride, token, head, at, tokens_alive, 0, D)
        put_halves(out, right, gate, gate_token_stride, gate_head_stride, token, head, at, tokens_alive, BLOCK_D // 2, D)
    else:
        put_columns(out, y, gate, gate_token_stride, gate_head_stride, token, head, at, tokens_alive, 0, D, GATED)
