"""Kernels with known properties, for the tests of the tests.

Too many registers; products of 8-bit and 16-bit floats; reading and writing before the kernel before has finished.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.tile import await_previous
from headrace.kernels.variant import Variant


@triton.jit
def _copy_large_tile(source, target, SIZE: tl.constexpr):
    places = tl.arange(0, SIZE)
    tile = tl.load(source + places)
    tl.store(target + places, tile + tl.sum(tile))


@triton.jit
def _product(a, b, out, SIZE: tl.constexpr):
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    places = rows * SIZE + columns
    tl.store(out + places, tl.dot(tl.load(a + places), tl.load(b + places)))


@triton.jit
def _copy_before_waiting(source, index, target, scale, SIZE: tl.constexpr, EARLY: tl.constexpr):
    places = tl.arange(0, SIZE)
    tl.store(target + places, tl.load(source + tl.load(index + places) * scale))
    await_previous(EARLY)
    tl.store(target + places, tl.load(target + places) + 1.0)


@triton.jit
def _copy_if_any(source, target, count, SIZE: tl.constexpr, EARLY: tl.constexpr):
    if count > 0:
        await_previous(EARLY)
        places = tl.arange(0, SIZE)
        tl.store(target + places, tl.load(source + places))


SPILLING = Variant(
    "spilling", _copy_large_tile, {"source": "*fp32", "target": "*fp32"}, {"SIZE": 2**15}, num_warps=1
)
FP8_PRODUCT = Variant("fp8", _product, {"a": "*fp8e4nv", "b": "*fp8e4nv", "out": "*fp32"}, {"SIZE": 64})
FP16_PRODUCT = Variant("fp16", _product, {"a": "*fp16", "b": "*fp16", "out": "*fp32"}, {"SIZE": 64})
HASTY = Variant(
    "hasty", _copy_before_waiting, {"source": "*fp32", "index": "*i64", "target": "*fp32", "scale": "i32"}, {"SIZE": 128},
    early=True,
)
EVADING = Variant(
    "evading", _copy_if_any, {"source": "*fp32", "target": "*fp32", "count": "i32"}, {"SIZE": 128}, early=True
)
