"""A row and some of its candidates a program."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.dispatch import early
from headrace.kernels.tile import await_previous, let_next_start
from headrace.kernels.variant import Variant

_CANDIDATES = 4
_WIDEST = 1024


@triton.jit
def _score(
    unary, candidates, before, hidden, predecessors, successors, scores, count, rank, unary_stride, candidate_stride,
    hidden_stride, SOME: tl.constexpr, RANK: tl.constexpr, EARLY: tl.constexpr,
):
    """Grid [R, C / SOME]. Strides: from row to row."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * SOME + tl.arange(0, SOME)
    inside = c < count
    token = tl.load(candidates + row * candidate_stride + c, mask=inside, other=0)
    last = tl.load(before + row)
    total = tl.load(unary + row * unary_stride + c, mask=inside, other=0.0)
    for first in range(0, rank, RANK):
        k = first + tl.arange(0, RANK)
        there = k < rank
        context = tl.load(hidden + row * hidden_stride + k, mask=there, other=0.0).to(tl.float32)
        context *= tl.load(predecessors + last * rank + k, mask=there, other=0.0).to(tl.float32)
        found = tl.load(successors + token[:, None] * rank + k[None, :], mask=inside[:, None] & there[None, :], other=0.0)
        total += tl.sum(found.to(tl.float32) * context[None, :], 1)
    tl.store(scores + row * count + c, total, mask=inside)


def candidate_scores(
    unary: Tensor, candidates: Tensor, before: Tensor, hidden: Tensor, predecessors: Tensor, successors: Tensor
) -> Tensor:
    (rows, count), rank = unary.shape, hidden.shape[1]
    scores = unary.new_empty(rows, count)
    if rows:
        _score[(rows, triton.cdiv(count, _CANDIDATES))](
            unary, candidates, before, hidden, predecessors, successors, scores, count, rank, unary.stride(0),
            candidates.stride(0), hidden.stride(0), _CANDIDATES, min(_WIDEST, triton.next_power_of_2(rank)), num_warps=1,
            **early(scores.device),
        )
    return scores


_NUMBERS = ("count", "rank", "unary_stride", "candidate_stride", "hidden_stride")
VARIANTS = tuple(
    Variant(
        dtype, _score,
        dict.fromkeys(("unary", "scores"), "*fp32") | dict.fromkeys(("candidates", "before"), "*i64")
        | dict.fromkeys(("hidden", "predecessors", "successors"), f"*{dtype}") | dict.fromkeys(_NUMBERS, "i32"),
        {"SOME": _CANDIDATES, "RANK": 256}, num_warps=1,
        aligned=("scores", "predecessors", "successors", "count", "rank"), early=True,
    )
    for dtype in ("bf16", "fp16", "fp32")
)
