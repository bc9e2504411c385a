"""Inputs on which every implementation must agree, and the slow formula.

8-bit pools are compared as the numbers their codes stand for. So that no rounding can take one code for its neighbour, k and v
are multiples of the scale there, unnormed, and turned by quarters of a circle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.kv_write.codes import LARGEST, encode
from headrace.kernels.precision import accumulation_dtype
from headrace.kernels.qk_norm_rope_kv_write.heads import HeadNorm, Heads

PAGES, PAGE_TOKENS = 3, 4


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    tokens: int
    heads: Heads
    rotary: int
    offset: float | None = None  # None: no norm
    kv: torch.dtype | None = None  # of the pools; None: as the input


CASES = (
    Case("plain", 5, Heads(4, 2, 16), 16),
    Case("one-token", 1, Heads(6, 1, 32, gated=True), 8, offset=1.0),
    Case("normed", 7, Heads(3, 3, 24), 24, offset=0.0),
    Case("gated-alone", 4, Heads(2, 1, 16, gated=True), 4),
    Case("odd-dim", 3, Heads(2, 1, 20, gated=True), 10, offset=1.0),
    Case("wide", 9, Heads(12, 2, 128, gated=True), 32, offset=1.0),
    Case("keys-alone", 6, Heads(0, 2, 32), 8, offset=1.0),
    Case("keys-alone-int8", 5, Heads(0, 3, 16), 8, kv=torch.int8),
    Case("int8", 6, Heads(6, 1, 64, gated=True), 16, kv=torch.int8),
    Case("int8-whole", 12, Heads(4, 4, 8), 8, kv=torch.int8),
    Case("fp8", 6, Heads(6, 2, 64, gated=True), 16, kv=torch.float8_e4m3fn),
    Case("fp8-whole", 3, Heads(2, 3, 20), 20, kv=torch.float8_e4m3fn),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(sum(map(ord, case.name)))
    heads, wide = case.heads, accumulation_dtype(dtype)
    turns = torch.rand(case.tokens, 1, case.rotary // 2, generator=rng, dtype=torch.float64) * 12
    if case.kv is not None:
        turns = turns.floor()
    cos, sin = (torch.stack([turns + shift for shift in (1, 0)]) * (torch.pi / 2)).sin()
    if case.kv is not None:
        cos, sin = cos.round(), sin.round()
    qkv = torch.randn(case.tokens, heads.width, generator=rng).to(dtype)
    if case.kv is not None:
        _, *parts, _ = heads.split(qkv)
        for part in parts:
            part.copy_(_multiples(part.shape, case.kv, rng))
    given: dict[str, Any] = {
        "qkv": qkv, "cos": cos.to(wide), "sin": sin.to(wide), "heads": heads,
        "write_at": torch.randperm(PAGES * PAGE_TOKENS, generator=rng)[: case.tokens],
    }
    if case.offset is not None:
        for name in ("query_weight", "key_weight"):
            given[name] = (0.3 * torch.randn(heads.dim, generator=rng) + 1 - case.offset).to(wide)
        given["offset"] = case.offset
    shape = (PAGES, PAGE_TOKENS, heads.keys, heads.dim)
    for name, scales in (("keys", "key_scales"), ("values", "value_scales")):
        before = torch.randn(shape, generator=rng)  # what other tokens' places hold stays
        if case.kv is None:
            given[name] = before.to(dtype)
        else:
            given[name], given[scales] = encode(before, case.kv)
    return given


def _multiples(shape: torch.Size, kv: torch.dtype, rng: torch.Generator) -> Tensor:
    """Codes times a power of two for each vector, the largest code among them."""
    most = LARGEST[kv]
    codes = (most * (2 * torch.rand(shape, generator=rng) - 1)).to(kv).float()
    codes[..., 0] = most
    return codes * 2.0 ** torch.randint(-9, 2, shape[:-1], generator=rng)[..., None]


EPS = 1e-6


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    norm = None
    if "offset" in given:
        norm = HeadNorm(given["query_weight"], given["key_weight"], EPS, given["offset"])
    pools = [given[name] for name in ("keys", "values", "write_at", "key_scales", "value_scales") if name in given]
    q = op.qk_norm_rope_kv_write(given["qkv"], given["cos"], given["sin"], given["heads"], norm, *pools)
    if "key_scales" not in given:
        return q, given["keys"], given["values"]
    return q, *(given[pool].float() * given[scales].float()[..., None]
                for pool, scales in (("keys", "key_scales"), ("values", "value_scales")))


def slow(
    *, qkv: Tensor, cos: Tensor, sin: Tensor, heads: Heads, write_at: Tensor, keys: Tensor, values: Tensor,
    query_weight: Tensor | None = None, key_weight: Tensor | None = None, offset: float = 0.0,
    key_scales: Tensor | None = None, value_scales: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """One vector at a time; pairs as complex numbers, turned."""
    q = torch.empty(len(qkv), heads.queries, heads.dim, dtype=torch.float64)
    keys, values = (pool.double() if scales is None else pool.double() * scales.double()[..., None]
                    for pool, scales in ((keys, key_scales), (values, value_scales)))
    keys, values = keys.clone(), values.clone()
    half = cos.shape[2]

    def moved(t: int, begin: int, weight: Tensor | None) -> Tensor:
        x = qkv[t, begin : begin + heads.dim].to(torch.float64, copy=True)
        if weight is not None:
            x = x / ((x * x).mean() + EPS).sqrt() * (offset + weight.double())
        for i in range(half):
            turned = complex(x[i], x[i + half]) * complex(cos[t, 0, i], sin[t, 0, i])
            x[i], x[i + half] = turned.real, turned.imag
        return x

    for t, place in enumerate(write_at.tolist()):
        at = (place // PAGE_TOKENS, place % PAGE_TOKENS)
        for head in range(heads.queries):
            q[t, head] = moved(t, head * heads.query_width, query_weight)
        for head in range(heads.keys):
            begin = heads.queries * heads.query_width + head * heads.dim
            keys[at][head] = moved(t, begin, key_weight)
            values[at][head] = qkv[t, begin + heads.keys * heads.dim :][: heads.dim].double()
    return q, keys, values
