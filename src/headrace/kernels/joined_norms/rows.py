"""Rows of packed tokens whose first ones go on from what was kept by slot."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Before:
    """row_offsets [R + 1] int32, of rows of one token or more; slots [R] int64; kept [S, H]: the hidden state before each
    slot's next token.
    """

    row_offsets: Tensor
    slots: Tensor
    kept: Tensor
