"""The tokens of the highest logits, where no order among equals is needed."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.top_tokens import grouped, reference


def top_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """logits [N, V] -> (values, in float32 or wider, ids int64) of the `count` highest, each [N, count], highest first.

    Which of equal logits comes first, and which is among them at all, is left open, but the same every time. Nothing waits for
    the device. Takes V / 64 numbers of a row beside the logits.
    """
    if logits.is_cuda and logits.shape[1] >= count * grouped.GROUP:
        return grouped.top_tokens(logits, count)
    return reference.top_tokens(logits, count)
