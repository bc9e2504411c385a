"""`sample.noise` in fp32."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from headrace.kernels.tile import INTERPRETED

_GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
_MULTIPLY_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * _MULTIPLY_1
    x = (x ^ (x >> 27)) * _MULTIPLY_2
    return x ^ (x >> 31)


@triton.jit
def _log1p_of_minus(u):
    """log(1 - u) for 0 < u < 1. What interprets has no log1p: log(w) * u / (1 - w) with w = 1 - u rounded (Kahan)."""
    if INTERPRETED:
        rounded = 1.0 - u
        lost = tl.where(rounded < 1.0, 1.0 - rounded, 1.0)
        return tl.where(rounded < 1.0, tl.log(rounded) * (u / lost), -u)
    else:
        return libdevice.log1p(-u)


@triton.jit
def uniform(seed, position, token):
    """`noise.uniform` in fp32."""
    key = _mix(_mix(seed.to(tl.uint64) + _GAMMA) + position.to(tl.uint64))
    bits = _mix(token.to(tl.uint64) * _GAMMA + key)
    return tl.minimum(((bits >> 11) + 1).to(tl.float32) * (2.0**-53), 1.0 - 2.0**-24)


@triton.jit
def gumbel(seed, position, token):
    """`noise.gumbel` in fp32."""
    return -tl.log(-_log1p_of_minus(uniform(seed, position, token)))
