"""What the kernels of the gated delta rule share: its gates, and the inverse of a unit triangular matrix."""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.tile import dot

NORM_EPS = tl.constexpr(1e-6)


@triton.jit
def log_decay(a, a_log, dt_bias):
    """-exp(a_log) softplus(a + dt_bias), in fp32."""
    x = a + dt_bias
    e = tl.exp(tl.minimum(x, 20.0))
    soft = tl.where(e < 1e-3, e - 0.5 * e * e, tl.log(1.0 + e))  # log(1 + e) loses a small e's digits
    return -tl.exp(a_log) * tl.where(x > 20.0, x, soft)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def pair_decay(c, same):
    """exp(c_i - c_j) where `same` [N, N] allows it, else 0. c [N]: cumulated log decays, which never grow."""
    return tl.where(same, tl.exp(tl.minimum(c[:, None] - c[None, :], 0.0)), 0.0)


@triton.jit
def invert_blocks(a, COUNT: tl.constexpr, SIZE: tl.constexpr):
    """(I + a)^-1 for COUNT strictly lower triangular a [COUNT, SIZE, SIZE], by forward substitution in fp32."""
    row, column = tl.arange(0, SIZE)[None, :, None], tl.arange(0, SIZE)[None, None, :]
    inverse = tl.zeros((COUNT, SIZE, SIZE), tl.float32) + tl.where(row == column, 1.0, 0.0)
    for j in range(SIZE - 1):
        factor = tl.sum(tl.where(column == j, a, 0.0), 2)
        final = tl.sum(tl.where(row == j, inverse, 0.0), 1)
        inverse -= factor[:, :, None] * final[:, None, :]
    return inverse


@triton.jit
def unit_lower_inverse(a, SIZE: tl.constexpr, OPERAND: tl.constexpr):
    """(I + a)^-1 for strictly lower triangular a [SIZE, SIZE], SIZE 16 or 64.

    Blocks of 16 on the diagonal first. Twice then, with D the inverse of neighbouring diagonal blocks and L what lies between
    them, the inverse of both together is D - D L D. Blocks of an inverse stay as small as it is, so that 16-bit operands do.
    """
    if SIZE == 16:
        return tl.reshape(invert_blocks(tl.reshape(a, (1, 16, 16)), 1, 16), (16, 16))
    else:
        block = tl.arange(0, SIZE // 16)
        own = block[:, None, None, None] == block[None, None, :, None]
        split = tl.reshape(a, (SIZE // 16, 16, SIZE // 16, 16))
        diagonal = invert_blocks(tl.sum(tl.where(own, split, 0.0), 2), SIZE // 16, 16)
        inverse = tl.reshape(tl.where(own, diagonal[:, :, None, :], 0.0), (SIZE, SIZE))
        i, j = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
        for level in tl.static_range(2):
            half = 16 << level
            between = (i // half % 2 == 1) & (j // half == i // half - 1)
            zero = tl.zeros((SIZE, SIZE), tl.float32)
            factor = dot(inverse.to(OPERAND), tl.where(between, a, 0.0).to(OPERAND), zero)
            inverse -= dot(factor.to(OPERAND), inverse.to(OPERAND), zero)
        return inverse
