"""Kernels that do nothing but call one function of `tile`, for its tests."""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels import tile


@triton.jit
def to_e4m3(x, out, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, tile.to_e4m3(tl.load(x + at)))


@triton.jit
def e4m3(x, out, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, tile.e4m3(tl.load(x + at)))


@triton.jit
def round_even(x, out, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, tile.round_even(tl.load(x + at)))


@triton.jit
def store(x, out, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tile.store(out + at, tl.load(x + at))


@triton.jit
def dot(a, b, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tl.store(out + at, tile.dot(tl.load(a + at), tl.load(b + at), tl.zeros((SIZE, SIZE), tl.float32), "ieee"))
