"""What the kernels of the gated delta rule share: its gates, and the inverse of a unit triangular matrix."""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.tile import dot

NORM_EPS = tl.constexpr(1e-6)
PRECISION = tl.constexpr("ieee")
"""Of products of fp32. Triton 3.6 does not take the default of `dot`, a string, from within a kernel."""


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
def unit_lower_inverse(a, LEVELS: tl.constexpr, OPERAND: tl.constexpr):
    """(I + a)^-1 for strictly lower triangular a [N, N], N = 2^LEVELS.

    With D the inverse of neighbouring blocks on the diagonal and L what lies between them, the inverse of both together is
    D - D L D; blocks of one have the inverse 1. Parts of an inverse stay as small as it is, so that 16-bit operands do, where
    powers of `a` would outgrow them.
    """
    N: tl.constexpr = 1 << LEVELS
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    zero = tl.zeros((N, N), tl.float32)
    inverse = tl.where(i == j, 1.0, tl.where((i % 2 == 1) & (j == i - 1), -a, 0.0))
    for level in tl.static_range(1, LEVELS):
        between = (i // (1 << level) % 2 == 1) & (j // (1 << level) == i // (1 << level) - 1)
        factor = dot(inverse.to(OPERAND), tl.where(between, a, 0.0).to(OPERAND), zero, PRECISION)
        inverse -= dot(factor.to(OPERAND), inverse.to(OPERAND), zero, PRECISION)
    return inverse
