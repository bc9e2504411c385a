"""int64 keys that sort as tokens are ranked."""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-(2**63))
"""Below every key."""


@triton.jit
def key_of(x, token):
    """int64 that sorts as (x upwards, token downwards): fp32 bits, reversed where negative, above 2^31 - 1 - token."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)  # + 0.0: -0.0 equals 0.0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)


@triton.jit
def token_of(key):
    return tl.where(key == LOWEST, 0, 0x7FFFFFFF - (key & 0x7FFFFFFF))  # 0 where every logit is -inf, as the reference has it


@triton.jit
def value_of(key):
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def floor_of_k(keys, k, low, MOST: tl.constexpr):
    """A key that k to MOST of the different keys [N] reach, by bisection from `low`, which k or all do; k <= MOST."""
    high = tl.max(keys, 0) + 1  # reached by none
    reached = tl.sum((keys >= low).to(tl.int32), 0)
    while reached > MOST:
        middle = (low & high) + ((low ^ high) >> 1)
        found = tl.sum((keys >= middle).to(tl.int32), 0)
        enough = found >= k
        low = tl.where(enough, middle, low)
        reached = tl.where(enough, found, reached)
        high = tl.where(enough, high, middle)
    return low
