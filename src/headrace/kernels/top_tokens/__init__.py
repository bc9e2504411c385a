"""The tokens of the highest logits, where no order among equals is needed."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.top_tokens import reference

GROUP = 64
"""Neighbouring tokens that the kernel looks at as one, where there are more such groups than tokens wanted."""


def top_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """logits [N, V] -> (values, in float32 or wider, ids int64) of the `count` highest, each [N, count], highest first.

    Which of equal logits comes first, and which is among them at all, is left open, but the same every time. Nothing waits for
    the device. Takes V / 64 numbers of a row beside the logits.
    """
    if runs_triton(logits) and logits.shape[1] >= count * GROUP:
        from headrace.kernels.top_tokens import triton

        return triton.top_tokens(logits, count)
    return reference.top_tokens(logits, count)
