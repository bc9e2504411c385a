"""What is drawn for rows with drafts, and what is known of every slot's sequence on the device alone."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Drawn:
    """tokens [N] int64: those of row r are tokens[begins[r] + j * stride]; begins [R] int32. most: the most of a row."""

    tokens: Tensor
    begins: Tensor
    stride: int
    most: int


@dataclass(frozen=True, slots=True)
class DraftSlots:
    """Tensors of S slots, the last of which is padding.

    positions [S] int64: of the next input. ends [S] int64: the first position that is never an input. frozen [S] bool: the
    message has ended. pending, parity [S] int32: see kernels.gated_delta_verify. next_tokens [S] int64, integers [S, 4] int64
    and marks [S, V] int32: see kernels.sample.
    """

    positions: Tensor
    ends: Tensor
    frozen: Tensor
    pending: Tensor
    parity: Tensor
    next_tokens: Tensor
    integers: Tensor
    marks: Tensor
