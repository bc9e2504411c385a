"""One pass over the vocabulary, whose groups of neighbouring tokens have a maximum each.

The `count` groups of the highest maxima hold the `count` highest logits, whatever the order among equals: each of those groups
has one that is not below any logit of the others. PyTorch's own maximum of so short groups takes ten times as long.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.dispatch import early
from headrace.kernels.precision import accumulation_dtype
from headrace.kernels.tile import await_previous, let_next_start
from headrace.kernels.top_tokens import GROUP
from headrace.kernels.variant import Variant

_TILE = 4_096


@triton.jit
def _maxima(logits, maxima, vocab, groups, GROUP: tl.constexpr, TILE: tl.constexpr, EARLY: tl.constexpr):
    """Grid [N, tiles]. maxima [N, groups] float32: the highest logit of each group of GROUP tokens."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * (TILE // GROUP) + tl.arange(0, TILE // GROUP)
    token = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = tl.load(logits + row * vocab + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
    tl.store(maxima + row * groups + group, tl.max(x, 1), mask=group < groups)


def top_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    logits, (rows, vocab) = logits.contiguous(), logits.shape
    groups = triton.cdiv(vocab, GROUP)
    maxima = torch.empty(rows, groups, dtype=torch.float32, device=logits.device)
    if rows:
        _maxima[(rows, triton.cdiv(vocab, _TILE))](
            logits, maxima, vocab, groups, GROUP, _TILE, num_warps=4, **early(logits.device)
        )
    best = torch.topk(maxima, min(count, groups), 1).indices  # [N, count]
    tokens = (best[..., None] * GROUP + torch.arange(GROUP, device=logits.device)).flatten(1)
    inside = tokens < vocab
    tokens = torch.where(inside, tokens, 0)
    found = torch.where(inside, logits.gather(1, tokens), float("-inf"))
    values, places = torch.topk(found, count, 1)
    return values.to(accumulation_dtype(logits.dtype)), tokens.gather(1, places)


VARIANTS = tuple(
    Variant(
        dtype, _maxima, {"logits": f"*{dtype}", "maxima": "*fp32", "vocab": "i32", "groups": "i32"},
        {"GROUP": GROUP, "TILE": _TILE}, aligned=("logits", "maxima", "vocab"), early=True,
    )
    for dtype in ("bf16", "fp16", "fp32")
)
