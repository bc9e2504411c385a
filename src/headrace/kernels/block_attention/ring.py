"""Keys and values of the last tokens of every slot's sequence."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class KeyRing:
    """keys, values [S, W, KV, D]: the token at position p of a slot's sequence lies at p % W, if it is there: positions [S, W]
    int64 has p + 1 for it, and 0 where no token is, so that memory of zeros is of empty rings.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor
