"""Logits after logit_bias, penalties and min_tokens, as `sample.adjust` computes them."""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.sample.slots import ENDS_MESSAGE, GENERATED_SHIFT

_ENDS = tl.constexpr(ENDS_MESSAGE)
_COUNT_SHIFT = tl.constexpr(GENERATED_SHIFT)


@triton.jit
def is_penalised(numbers, slot):
    presence, frequency = tl.load(numbers + slot * 6 + 3), tl.load(numbers + slot * 6 + 4)
    return (presence != 0.0) | (frequency != 0.0) | (tl.load(numbers + slot * 6 + 5) != 1.0)


@triton.jit
def wishes_of(slot, integers, numbers, bias_values, BIASES: tl.constexpr):
    """(first logit_bias or 0, whether marks matter, whether the message is held open), loaded together before any is used."""
    bias = tl.load(bias_values + slot * BIASES)
    held_open = tl.load(integers + slot * 4 + 3) < tl.load(integers + slot * 4 + 2)
    return bias.to(tl.float32), held_open | is_penalised(numbers, slot), held_open


@triton.jit
def adjusted(x, token, inside, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES: tl.constexpr):
    """Logits x of tokens after logit_bias, penalties and min_tokens, as `adjust` computes them."""
    bias, marked, held_open = wishes
    entry = 0
    while bias != 0.0:
        x = tl.where(token == tl.load(bias_tokens + slot * BIASES + entry), x + bias, x)
        entry += 1
        bias = tl.load(bias_values + slot * BIASES + entry, mask=entry < BIASES, other=0.0).to(tl.float32)
    if marked:
        presence = tl.load(numbers + slot * 6 + 3).to(tl.float32)
        frequency = tl.load(numbers + slot * 6 + 4).to(tl.float32)
        repetition = tl.load(numbers + slot * 6 + 5).to(tl.float32)
        mark = tl.load(marks + slot * vocab + token, mask=inside, other=0)
        count = (mark >> _COUNT_SHIFT).to(tl.float32)
        repeated = tl.where(x > 0.0, tl.div_rn(x, tl.zeros_like(x) + repetition), x * repetition)
        x = tl.where((mark & ~_ENDS) != 0, repeated, x)
        x = x - tl.where(count > 0.0, presence, 0.0) - count * frequency
        x = tl.where(((mark & _ENDS) != 0) & held_open, float("-inf"), x)
    return x
