"""A row a program: in PyTorch's operations the noise alone is twenty launches."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.dispatch import early
from headrace.kernels.sample.odds import ODDS, Odds
from headrace.kernels.sample.triton.gumbel import gumbel
from headrace.kernels.sample.triton.head import drawn_of_head, first_of_head, kept_of_head
from headrace.kernels.sample.triton.keys import LOWEST, key_of
from headrace.kernels.tile import await_previous, let_next_start
from headrace.kernels.variant import Variant


@triton.jit(do_not_specialize=["place"])
def _draw(
    scores, candidates, slots, positions, integers, numbers, ids, chances, counts, free, drawn, count, integer_stride,
    number_stride, score_stride, candidate_stride, drafts_of, place,
    COUNT: tl.constexpr, MOST: tl.constexpr, EARLY: tl.constexpr,
):
    """Grid [R]. Strides: of slots, and of rows."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(0).to(tl.int64)
    slot, position = tl.load(slots + row), tl.load(positions + row)
    seed = tl.load(integers + slot * integer_stride)
    temperature = tl.load(numbers + slot * number_stride).to(tl.float32)
    known, at = (tl.load(free + slot) != 0) & (temperature > 0.0), slot * drafts_of + place
    c = tl.arange(0, COUNT)
    token = tl.load(candidates + row * candidate_stride + c, mask=c < count, other=0)
    score = tl.load(scores + row * score_stride + c, mask=c < count, other=float("-inf"))
    if known:
        top_k, top_p = tl.load(integers + slot * integer_stride + 1), tl.load(numbers + slot * number_stride + 1)
        keys = tl.where(c < count, key_of(score, token), LOWEST)
        k = tl.where(top_k == 0, COUNT, top_k).to(tl.int32)
        _, scaled, mass = first_of_head(keys, k, temperature)
        min_p = tl.load(numbers + slot * number_stride + 2).to(tl.float32)
        mass = kept_of_head(keys, scaled, mass, top_p, min_p, tl.sum(mass, 0))
        tl.store(ids + at * MOST + c, token.to(tl.int32), mask=c < count)
        tl.store(chances + at * MOST + c, (mass / tl.sum(mass, 0)).to(tl.float32), mask=c < count)
        tl.store(drawn + row, drawn_of_head(token.to(tl.int32), scaled, mass, seed, position))
    else:
        divisor = tl.zeros_like(score) + tl.where(temperature > 0.0, temperature, 1.0)
        warm = tl.div_rn(score, divisor) + gumbel(seed, position, token)
        score = tl.where(temperature > 0.0, warm, score)
        score = tl.where(c < count, score, float("-inf"))
        best = tl.min(tl.where(score == tl.max(score, 0), c, COUNT), 0)
        tl.store(drawn + row, tl.sum(tl.where(c == best, token, 0), 0))
    tl.store(counts + at, tl.where(known, count, 0))


def draw_candidates(
    scores: Tensor, candidates: Tensor, slots: Tensor, positions: Tensor, integers: Tensor, numbers: Tensor, odds: Odds,
    place: int,
) -> Tensor:
    drawn, (rows, count) = slots.new_empty(len(slots)), scores.shape
    if rows:
        _draw[(rows,)](
            scores, candidates, slots, positions, integers, numbers, odds.ids, odds.chances, odds.counts,
            odds.free.view(torch.int8), drawn, count, integers.stride(0), numbers.stride(0), scores.stride(0),
            candidates.stride(0), odds.counts.shape[1], place, triton.next_power_of_2(count), ODDS, num_warps=_warps(count),
            **early(drawn.device),
        )
    return drawn


def _warps(count: int) -> int:
    """Free rows compare every two candidates."""
    return 1 if count <= 16 else 4


_NUMBERS = ("count", "integer_stride", "number_stride", "score_stride", "candidate_stride", "drafts_of", "place")
_SIGNATURE = dict.fromkeys(("candidates", "slots", "positions", "integers", "drawn"), "*i64") | {
    "scores": "*fp32", "numbers": "*fp64", "ids": "*i32", "chances": "*fp32", "counts": "*i32", "free": "*i8",
} | dict.fromkeys(_NUMBERS, "i32")
VARIANTS = tuple(
    Variant(
        str(count), _draw, _SIGNATURE, {"COUNT": count, "MOST": ODDS}, num_warps=_warps(count),
        aligned=("integers", "numbers", "drawn", "ids", "chances", "counts", "free"), early=True,
    )
    for count in (16, 64)
)
