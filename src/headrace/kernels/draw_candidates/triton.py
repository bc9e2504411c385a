"""A row a program: in PyTorch's operations the noise alone is twenty launches."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.dispatch import early
from headrace.kernels.sample.triton.gumbel import gumbel
from headrace.kernels.tile import await_previous, let_next_start
from headrace.kernels.variant import Variant


@triton.jit
def _draw(
    scores, candidates, slots, positions, integers, numbers, drawn, count, integer_stride, number_stride, score_stride,
    candidate_stride, COUNT: tl.constexpr, EARLY: tl.constexpr,
):
    """Grid [R]. Strides: of slots, and of rows."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(0).to(tl.int64)
    slot, position = tl.load(slots + row), tl.load(positions + row)
    seed = tl.load(integers + slot * integer_stride)
    temperature = tl.load(numbers + slot * number_stride).to(tl.float32)
    c = tl.arange(0, COUNT)
    token = tl.load(candidates + row * candidate_stride + c, mask=c < count, other=0)
    score = tl.load(scores + row * score_stride + c, mask=c < count, other=float("-inf"))
    divisor = tl.zeros_like(score) + tl.where(temperature > 0.0, temperature, 1.0)
    warm = tl.div_rn(score, divisor) + gumbel(seed, position, token)
    score = tl.where(temperature > 0.0, warm, score)
    score = tl.where(c < count, score, float("-inf"))
    best = tl.min(tl.where(score == tl.max(score, 0), c, COUNT), 0)
    tl.store(drawn + row, tl.sum(tl.where(c == best, token, 0), 0))


def draw_candidates(
    scores: Tensor, candidates: Tensor, slots: Tensor, positions: Tensor, integers: Tensor, numbers: Tensor
) -> Tensor:
    drawn, (rows, count) = slots.new_empty(len(slots)), scores.shape
    if rows:
        _draw[(rows,)](
            scores, candidates, slots, positions, integers, numbers, drawn, count, integers.stride(0), numbers.stride(0),
            scores.stride(0), candidates.stride(0), triton.next_power_of_2(count), num_warps=1, **early(drawn.device),
        )
    return drawn


_NUMBERS = ("count", "integer_stride", "number_stride", "score_stride", "candidate_stride")
_SIGNATURE = dict.fromkeys(("candidates", "slots", "positions", "integers", "drawn"), "*i64") | {
    "scores": "*fp32", "numbers": "*fp64"} | dict.fromkeys(_NUMBERS, "i32")
VARIANTS = tuple(
    Variant(str(count), _draw, _SIGNATURE, {"COUNT": count}, num_warps=1, aligned=("integers", "numbers", "drawn"), early=True)
    for count in (16, 64)
)
