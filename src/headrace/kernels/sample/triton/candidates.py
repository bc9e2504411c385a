"""The tokens that a draft was drawn among, and what their probabilities leave of the target's."""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.sample.triton.adjusted import adjusted
from headrace.kernels.sample.triton.gumbel import gumbel
from headrace.kernels.sample.triton.keys import LOWEST, key_of, token_of
from headrace.kernels.sample.triton.verdicts import SALT

_NONE = tl.constexpr(2**31 - 1)


@triton.jit
def candidates_of(ids, chances, counts, slot, place, drafts_of, MOST: tl.constexpr):
    """ids [MOST] int32, -1 for none, and their probabilities [MOST] of draft number `place` of a slot."""
    at, c = slot * drafts_of + place, tl.arange(0, MOST)
    there = c < tl.load(counts + at)
    candidate = tl.load(ids + at * MOST + c, mask=there, other=-1)
    return candidate, tl.load(chances + at * MOST + c, mask=there, other=0.0)


@triton.jit
def of_draft(token, values, draft):
    """Of values [N] of different tokens [N] the draft's, 0 if it is not among them."""
    return tl.sum(tl.where(token == draft, values, 0.0), 0)


@triton.jit
def among(token, candidate, first, TILE: tl.constexpr):
    """Whether tokens [TILE], from `first` on, are candidates [MOST]."""
    left = tl.where((candidate >= first) & (candidate < first + TILE), candidate, _NONE)
    lowest, found = tl.min(left, 0), token < 0
    while lowest < _NONE:
        found = found | (token == lowest)
        left = tl.where(left > lowest, left, _NONE)
        lowest = tl.min(left, 0)
    return found


@triton.jit
def masses_of_candidates(
    logits, candidate, top, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES: tl.constexpr
):
    """The target's unnormalised probabilities [MOST] float64 of the candidates, for a row without top_k and top_p."""
    there = candidate >= 0
    token = tl.where(there, candidate, 0)
    x = tl.load(logits + token, mask=there, other=float("-inf")).to(tl.float32)
    x = adjusted(x, token, there, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES)
    temperature, min_p = tl.load(numbers + slot * 6).to(tl.float32), tl.load(numbers + slot * 6 + 2).to(tl.float32)
    scaled = tl.div_rn(x - top, tl.zeros_like(x) + temperature)
    return tl.where(there & (scaled >= tl.log(min_p)), tl.exp(scaled.to(tl.float64)), 0.0)


@triton.jit
def best_left(token, mass, chance, total, seed, position):
    """The largest key of (score, token) in a draw from max(p - q, 0), LOWEST if that is nothing: mass and chance are p and q of
    tokens [N], p as shares of total.
    """
    left = mass - chance * total
    scores = tl.log(tl.where(left > 0.0, left, 1.0).to(tl.float32)) + gumbel(seed + SALT, position, token)
    return tl.max(tl.where(left > 0.0, key_of(scores, token), LOWEST), 0)


@triton.jit
def nothing_left(token, mass, draft):
    """Where rounding leaves nothing of p - q the two are equal."""
    likeliest = token_of(tl.max(tl.where(mass > 0.0, key_of(mass.to(tl.float32), token), LOWEST), 0))
    return tl.where(of_draft(token, mass, draft) > 0.0, draft, likeliest)
