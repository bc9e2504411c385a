"""Where a drawn token goes."""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.sample.slots import GENERATED_ONCE
from headrace.kernels.sample.triton.adjusted import is_penalised

_COUNT_ONCE = tl.constexpr(GENERATED_ONCE)


@triton.jit
def give(token, row, slot, integers, numbers, marks, drawn, next_tokens, vocab, COUNT: tl.constexpr):
    """The row's token; with COUNT also the slot's next token, its count and its mark."""
    tl.store(drawn + row, token)
    if COUNT:
        tl.store(next_tokens + slot, token)
        tl.store(integers + slot * 4 + 3, tl.load(integers + slot * 4 + 3) + 1)
        if is_penalised(numbers, slot):
            mark = marks + slot * vocab + token
            tl.store(mark, tl.load(mark) + _COUNT_ONCE)
