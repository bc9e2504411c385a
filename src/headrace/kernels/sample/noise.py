"""Noise keyed by (seed, position, token id): the same on every device, in any batch, in any order of evaluation.

The generator is SplitMix64 (Steele, Lea, Flood 2014): its stream number t from start `key` is mix(key + t * GAMMA), where
mix is Stafford's variant 13 of the Murmur3 finaliser. A row's key is itself mixed from seed and position, and the
token id is the number in the stream, so any token's noise can be had without its neighbours'. All arithmetic is int64 with
wrap-around; a shift is masked, since int64 shifts copy the sign.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits


_GAMMA = _signed(0x9E3779B97F4A7C15)
_MULTIPLY_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = _signed(0x94D049BB133111EB)


def _xor_shifted_(x: Tensor, shift: int) -> Tensor:
    return x.bitwise_xor_((x >> shift).bitwise_and_(2 ** (64 - shift) - 1))


def _mix_(x: Tensor) -> Tensor:
    """A bijection of 64-bit words in which every input bit flips every output bit half of the time; overwrites x."""
    _xor_shifted_(x, 30).mul_(_MULTIPLY_1)
    _xor_shifted_(x, 27).mul_(_MULTIPLY_2)
    return _xor_shifted_(x, 31)


def row_keys(seeds: Tensor, positions: Tensor) -> Tensor:
    """Stream starts [R] int64 of rows that draw the token at `positions` [R] int64 under `seeds` [R] int64."""
    return _mix_(_mix_(seeds + _GAMMA).add_(positions))


def uniform(keys: Tensor, tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """Uniforms in the open interval (0, 1) as [R, K] of `dtype`; keys [R], tokens [K] or [R, K], both int64.

    53 random bits, rounded to dtype: float32 values below a half keep 24 significant bits each, down to 2^-53.
    """
    bits = _mix_(keys[:, None] + tokens * _GAMMA)
    count = (bits >> 11).bitwise_and_(2**53 - 1).add_(1)  # 1 ... 2^53
    return count.to(dtype).mul_(2.0**-53).clamp_(max=1 - torch.finfo(dtype).eps / 2)


def gumbel(keys: Tensor, tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """Standard Gumbel noise -log(-log u), shapes as `uniform`.

    u is one minus the uniform: the large values, which win, then come from its densest floats instead of from a
    grid of 2^-24, so that tokens of probability 1e-9 are still drawn as often as they should be in float32.
    """
    return uniform(keys, tokens, dtype).neg_().log1p_().neg_().log_().neg_()
