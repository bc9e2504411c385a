"""The pass in Triton: a program takes one token and some of its heads, all of q, or of k, or of v."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.dispatch import early
from headrace.kernels.kv_write.codes import LARGEST, MOST_SCALE
from headrace.kernels.qk_norm_rope_kv_write.heads import HeadNorm, Heads
from headrace.kernels.tile import await_previous, let_next_start, round_even, store, to_e4m3
from headrace.kernels.variant import Variant

FLOATS, INT8, E4M3 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_INT8_LARGEST, _E4M3_LARGEST = tl.constexpr(LARGEST[torch.int8]), tl.constexpr(LARGEST[torch.float8_e4m3fn])
_MOST_SCALE = tl.constexpr(MOST_SCALE)
_TILE_ELEMENTS = 1024
"""Of one program: four heads of 256."""


@triton.jit
def rotated(x_at, cos_at, sin_at, weight, alive, eps, offset, D: tl.constexpr, BLOCK_D: tl.constexpr, HALF: tl.constexpr,
            NORMED: tl.constexpr):
    """Vectors at pointers x_at [N], normed and rotated, fp32 [N, BLOCK_D]; zeros past D."""
    dims = tl.arange(0, BLOCK_D)
    mask = alive[:, None] & (dims < D)[None, :]
    x = tl.load(x_at[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    partner = tl.where(dims < HALF, dims + HALF, tl.where(dims < 2 * HALF, dims - HALF, dims))
    y = tl.load(x_at[:, None] + partner[None, :], mask=mask, other=0.0).to(tl.float32)
    if NORMED:
        inverse = tl.rsqrt(tl.sum(x * x, 1) / D + eps)
        x *= inverse[:, None] * (tl.load(weight + dims, mask=dims < D, other=0.0).to(tl.float32) + offset)[None, :]
        y *= inverse[:, None] * (tl.load(weight + partner, mask=dims < D, other=0.0).to(tl.float32) + offset)[None, :]
    turned = dims < 2 * HALF
    pair = tl.where(dims < HALF, dims, partner)
    cos = tl.load(cos_at + pair, mask=turned, other=1.0)
    sin = tl.load(sin_at + pair, mask=turned, other=0.0) * tl.where(dims < HALF, -1.0, 1.0)
    return x * cos[None, :] + y * sin[None, :]


@triton.jit
def put(pool, scales, places, x, alive, D: tl.constexpr, KIND: tl.constexpr):
    """Write vectors x [N, BLOCK_D] to places [N] of a pool, as `kv_write.codes.encode` says."""
    dims = tl.arange(0, x.shape[1])
    pointers, mask = pool + places[:, None] * D + dims[None, :], alive[:, None] & (dims < D)[None, :]
    if KIND == FLOATS:
        store(pointers, x, mask)
    else:
        largest: tl.constexpr = _INT8_LARGEST if KIND == INT8 else _E4M3_LARGEST
        scale = tl.minimum(tl.div_rn(tl.max(tl.abs(x), 1), largest), _MOST_SCALE).to(tl.float16)
        tl.store(scales + places, scale, mask=alive)
        wide = scale.to(tl.float32)
        inverse = tl.where(wide > 0.0, tl.div_rn(1.0, tl.where(wide > 0.0, wide, 1.0)), 0.0)
        scaled = tl.minimum(tl.maximum(x * inverse[:, None], -largest), largest)
        if KIND == INT8:
            tl.store(pointers, round_even(scaled).to(tl.int8), mask=mask)
        else:
            tl.store(pointers, to_e4m3(scaled), mask=mask)


@triton.jit
def norm_rotate_write(
    qkv, cos, sin, query_weight, key_weight, q, keys, values, key_scales, value_scales, write_at, eps, offset,
    H: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, Q_WIDTH: tl.constexpr,
    HALF: tl.constexpr, KIND: tl.constexpr, NORMED: tl.constexpr, EARLY: tl.constexpr,
):
    """Grid [T, q's parts + k's + v's] of BLOCK_H heads each."""
    let_next_start(EARLY)
    await_previous(EARLY)
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = qkv + token * (H * Q_WIDTH + 2 * KV * D)
    cos_at, sin_at = cos + token * HALF, sin + token * HALF
    dims = tl.arange(0, BLOCK_D)
    q_parts: tl.constexpr = (H + BLOCK_H - 1) // BLOCK_H
    k_parts: tl.constexpr = (KV + BLOCK_H - 1) // BLOCK_H
    if part < q_parts:
        head = part * BLOCK_H + tl.arange(0, BLOCK_H)
        alive = head < H
        x = rotated(row + head * Q_WIDTH, cos_at, sin_at, query_weight, alive, eps, offset, D, BLOCK_D, HALF, NORMED)
        store(q + ((token * H + head) * D)[:, None] + dims[None, :], x, alive[:, None] & (dims < D)[None, :])
    else:
        place = tl.load(write_at + token)
        keys_part = part - q_parts
        if keys_part < k_parts:
            head = keys_part * BLOCK_H + tl.arange(0, BLOCK_H)
            alive = head < KV
            x_at = row + H * Q_WIDTH + head * D
            x = rotated(x_at, cos_at, sin_at, key_weight, alive, eps, offset, D, BLOCK_D, HALF, NORMED)
            put(keys, key_scales, place * KV + head, x, alive, D, KIND)
        else:
            head = (keys_part - k_parts) * BLOCK_H + tl.arange(0, BLOCK_H)
            alive = head < KV
            x_at = row + H * Q_WIDTH + (KV + head) * D
            x = tl.load(x_at[:, None] + dims[None, :], mask=alive[:, None] & (dims < D)[None, :], other=0.0).to(tl.float32)
            put(values, value_scales, place * KV + head, x, alive, D, KIND)


def qk_norm_rope_kv_write(
    qkv: Tensor, cos: Tensor, sin: Tensor, heads: Heads, norm: HeadNorm | None, keys: Tensor, values: Tensor, write_at: Tensor,
    key_scales: Tensor | None = None, value_scales: Tensor | None = None,
) -> Tensor:
    q = torch.empty(len(qkv), heads.queries, heads.dim, dtype=qkv.dtype, device=qkv.device)
    kind = {torch.int8: INT8, torch.float8_e4m3fn: E4M3}.get(keys.dtype, FLOATS).value
    if kind == E4M3:
        keys, values = keys.view(torch.uint8), values.view(torch.uint8)
    sizes = _sizes(heads, cos.shape[2])
    parts = triton.cdiv(heads.queries, sizes["BLOCK_H"]) + 2 * triton.cdiv(heads.keys, sizes["BLOCK_H"])
    weights = (None, None) if norm is None else (norm.query, norm.key)
    eps, offset = (0.0, 0.0) if norm is None else (norm.eps, norm.offset)
    if len(qkv):
        norm_rotate_write[(len(qkv), parts)](
            qkv.contiguous(), cos, sin, *weights, q, keys, values, key_scales, value_scales, write_at, eps, offset,
            **sizes, KIND=kind, NORMED=norm is not None, num_warps=4, **early(q.device),
        )
    return q


def _sizes(heads: Heads, half: int) -> dict[str, int]:
    block = triton.next_power_of_2(heads.dim)
    some = max(1, min(_TILE_ELEMENTS // block, triton.next_power_of_2(heads.keys)))
    return {
        "H": heads.queries, "KV": heads.keys, "D": heads.dim, "BLOCK_D": block, "BLOCK_H": some,
        "Q_WIDTH": heads.query_width, "HALF": half,
    }


def _variant(compute: str, kv: str, heads: Heads, half: int, *, normed: bool) -> Variant:
    pool, kind = {"int8": ("*i8", INT8), "fp8": ("*u8", E4M3)}.get(kv, (f"*{kv}", FLOATS))
    present: Mapping[str, str] = {"query_weight": "*fp32", "key_weight": "*fp32"} if normed else {}
    scales: Mapping[str, str] = {} if kind is FLOATS else {"key_scales": "*fp16", "value_scales": "*fp16"}
    absent = {"query_weight", "key_weight", "key_scales", "value_scales"} - present.keys() - scales.keys()
    return Variant(
        f"{compute}-{kv}-{heads.dim}{'-normed' if normed else ''}{'' if heads.queries else '-keys-alone'}",
        norm_rotate_write,
        {"qkv": f"*{compute}", "cos": "*fp32", "sin": "*fp32", "q": f"*{compute}", "keys": pool, "values": pool,
         "write_at": "*i64", "eps": "fp32", "offset": "fp32", **present, **scales},
        {**_sizes(heads, half), "KIND": kind.value, "NORMED": normed, **dict.fromkeys(absent)},
        early=True,
    )


_KEYS_ALONE = Heads(0, 4, 256)
_QWEN, _LLAMA = Heads(24, 4, 256, gated=True), Heads(9, 3, 64)
VARIANTS = (
    *(_variant(compute, kv, _QWEN, 32, normed=True) for compute in ("bf16", "fp16") for kv in (compute, "int8", "fp8")),
    *(_variant("bf16", kv, _KEYS_ALONE, 32, normed=True) for kv in ("bf16", "int8", "fp8")),
    *(_variant(compute, kv, _LLAMA, 32, normed=False) for compute in ("bf16", "fp16", "fp32") for kv in (compute, "int8")),
)
