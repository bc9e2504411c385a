"""Causal softmax attention of packed rows over paged keys and values: prefill chunks, decoding and verification alike."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.paged_attention import reference
from headrace.kernels.paged_attention.reference import plan_rows
from headrace.kernels.paged_attention.rows import Inputs, PagedRows

LARGEST_HEAD = 256
"""Of heads that the kernels take."""


def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, rows: PagedRows, scale: float, key_scales: Tensor | None = None,
    value_scales: Tensor | None = None, gate: Tensor | None = None,
) -> Tensor:
    """softmax(scale q k^T + causal mask) v, times sigmoid(gate) if there is one: [T, H, D] as q.

    q, gate [T, H, D]; keys, values [pages, page_tokens, KV, D]: float, or fp8 e4m3 or int8 codes with fp16 scales [pages,
    page_tokens, KV] (see kv_write). Query head h reads key head h // (H / KV). Page table entries for tokens that no query of
    the row sees are never read, so no other sequence's memory is. On CUDA in 16 or 32 bits nothing waits for the device, and
    nothing but the workspace depends on host numbers of rows of at most 32 tokens.
    """
    if runs_triton(q) and q.shape[2] <= LARGEST_HEAD:
        from headrace.kernels.paged_attention import triton

        return triton.paged_attention(q, keys, values, rows, scale, key_scales, value_scales, gate)
    return reference.paged_attention(q, keys, values, rows, scale, key_scales, value_scales, gate)


def forms_of(
    inputs: Inputs, gate: Tensor | None, page_tokens: int, rows: int, longest: int
) -> tuple[Hashable, ...]:
    """What numbers of rows, and of tokens of the longest that is split, decide of the kernels for those, each by itself: those
    of equal answers are the same. Longer rows have one form. inputs: q, keys, values, their scales or None; the numbers do not
    matter.
    """
    q = inputs[0]
    if not (runs_triton(q) and q.shape[2] <= LARGEST_HEAD):
        return ()
    from headrace.kernels.paged_attention import triton

    return triton.forms_of(inputs, gate, page_tokens, rows, longest)


__all__ = ["PagedRows", "forms_of", "paged_attention", "plan_rows"]
