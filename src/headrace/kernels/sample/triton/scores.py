"""Rows that draw from the whole vocabulary, from a nucleus, or with a large top_k.

They need no ranking. The token with the largest score of all is the one to draw if it is kept, which the tokens ranked before
it tell: their mass, or their number. If it is not, no token ranked behind it is, and the largest score among those before it
is the next to look at. That is seldom (1 - top_p of the draws), and left to one program. Masses are fp32 exponentials as
whole multiples of 2^-40 of the best token's: their sums do not depend on the order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.sample.triton.adjusted import adjusted, wishes_of
from headrace.kernels.sample.triton.candidates import (
    among,
    best_left,
    candidates_of,
    masses_of_candidates,
    nothing_left,
)
from headrace.kernels.sample.triton.gumbel import gumbel
from headrace.kernels.sample.triton.keys import LOWEST, key_of, token_of, value_of
from headrace.kernels.sample.triton.verdicts import DECIDED, PLAIN, REST, SALT
from headrace.kernels.tile import await_previous, let_next_start


@triton.jit
def by_scores(integers, numbers, slot, MOST: tl.constexpr):
    """Whether the row draws by scores over the vocabulary: a temperature, and no top_k of at most MOST."""
    top_k = tl.load(integers + slot * 4 + 1)
    return (tl.load(numbers + slot * 6) != 0.0) & ((top_k == 0) | (top_k > MOST))


@triton.jit
def _limited(integers, numbers, slot):
    """Whether such a row keeps only a part of the vocabulary (min_p apart)."""
    return (tl.load(integers + slot * 4 + 1) > 0) | (tl.load(numbers + slot * 6 + 1) < 1.0)


@triton.jit
def top_of(maxima, groups, GROUPS: tl.constexpr):
    """The row's highest logit."""
    group = tl.arange(0, GROUPS)
    return tl.max(tl.load(maxima + group, mask=group < groups, other=float("-inf")), 0)


@triton.jit
def _scored(x, token, inside, top, slot, position, seed, numbers):
    """Keys of (score, token); LOWEST where min_p removes the token."""
    temperature = tl.load(numbers + slot * 6).to(tl.float32)
    scaled = tl.div_rn(x - top, tl.zeros_like(x) + temperature)
    scores = key_of(scaled + gumbel(seed, position, token), token)
    least = tl.log(tl.load(numbers + slot * 6 + 2).to(tl.float32))
    return tl.where((scaled >= least) & inside, scores, LOWEST)


@triton.jit
def mass_of(x, top, temperature):
    """Of tokens with logits x, the best token's being 2^40."""
    return (tl.exp(tl.div_rn(x - top, tl.zeros_like(x) + temperature)) * 1099511627776.0).to(tl.int64)


@triton.jit
def best_scores(
    logits, slots, positions, integers, numbers, bias_tokens, bias_values, marks, maxima, winners, verdicts, places, ids,
    chances, counts, stride, vocab, groups, tiles, drafts_of, TILE: tl.constexpr, GROUPS: tl.constexpr, MOST: tl.constexpr,
    BIASES: tl.constexpr, EARLY: tl.constexpr,
):
    """winners [R, programs]: of rows that draw by scores, the key of (score, token) of each program's best; of tokens that are
    no candidates, where the verdict is REST.
    """
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    verdict = PLAIN
    if verdicts is not None:
        verdict = tl.load(verdicts + row)
    if by_scores(integers, numbers, slot, MOST) & (verdict != DECIDED):
        seed = tl.load(integers + slot * 4)
        if verdicts is not None:
            seed += tl.where(verdict == REST, SALT, 0)
        wishes = wishes_of(slot, integers, numbers, bias_values, BIASES)
        position = tl.load(positions + row).to(tl.int64)
        top = top_of(maxima + row * groups, groups, GROUPS)
        best = tl.full((TILE,), LOWEST, tl.int64)
        for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
            token = tile * TILE + tl.arange(0, TILE)
            inside = token < vocab
            x = tl.load(logits + row.to(tl.int64) * stride + token, mask=inside, other=float("-inf")).to(tl.float32)
            x = adjusted(x, token, inside, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES)
            if verdicts is not None:
                if verdict == REST:
                    candidate, _ = candidates_of(ids, chances, counts, slot, tl.load(places + row), drafts_of, MOST)
                    inside = inside & ~among(token, candidate, tile * TILE, TILE)
            best = tl.maximum(best, _scored(x, token, inside, top, slot, position, seed, numbers))
        tl.store(winners + row * tl.num_programs(0) + tl.program_id(0), tl.max(best, 0))


@triton.jit
def _winner(winners, shares, SHARES: tl.constexpr):
    share = tl.arange(0, SHARES)
    return tl.max(tl.load(winners + share, mask=share < shares, other=LOWEST), 0)


@triton.jit
def _standing(
    logits, token, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES: tl.constexpr
):
    """The key of (adjusted logit, token) of one token."""
    tokens = token.to(tl.int32) + tl.zeros((1,), tl.int32)
    x = tl.load(logits + tokens).to(tl.float32)
    x = adjusted(x, tokens, tokens < vocab, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES)
    return tl.max(key_of(x, tokens), 0)


@triton.jit
def tokens_ahead(
    logits, slots, integers, numbers, bias_tokens, bias_values, marks, maxima, winners, ahead, standings, verdicts, stride,
    vocab, groups, tiles, TILE: tl.constexpr, GROUPS: tl.constexpr, SHARES: tl.constexpr, MOST: tl.constexpr,
    BIASES: tl.constexpr, EARLY: tl.constexpr,
):
    """ahead [R, programs, 3]: of rows that keep a part, number and mass of tokens ranked before the winner, and all mass.

    standings [R]: the winner's key of (adjusted logit, token).
    """
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    verdict = PLAIN
    if verdicts is not None:
        verdict = tl.load(verdicts + row)
    if by_scores(integers, numbers, slot, MOST) & _limited(integers, numbers, slot) & (verdict == PLAIN):
        wishes = wishes_of(slot, integers, numbers, bias_values, BIASES)
        temperature = tl.load(numbers + slot * 6).to(tl.float32)
        top = top_of(maxima + row * groups, groups, GROUPS)
        shares = tl.num_programs(0)
        source = logits + row.to(tl.int64) * stride
        winner = token_of(_winner(winners + row * shares, shares, SHARES))
        standing = _standing(source, winner, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES)
        count, before, total = tl.zeros((TILE,), tl.int64), tl.zeros((TILE,), tl.int64), tl.zeros((TILE,), tl.int64)
        for tile in range(tl.program_id(0), tiles, shares):
            token = tile * TILE + tl.arange(0, TILE)
            inside = token < vocab
            x = tl.load(source + token, mask=inside, other=float("-inf")).to(tl.float32)
            x = adjusted(x, token, inside, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES)
            mass, better = tl.where(inside, mass_of(x, top, temperature), 0), inside & (key_of(x, token) > standing)
            count += better.to(tl.int64)
            before += tl.where(better, mass, 0)
            total += mass
        out = ahead + (row * shares + tl.program_id(0)) * 3
        tl.store(out, tl.sum(count, 0))
        tl.store(out + 1, tl.sum(before, 0))
        tl.store(out + 2, tl.sum(total, 0))
        tl.store(standings + row, standing)  # the same from every program


@triton.jit
def _kept(count, before, total, top_k, top_p):
    """Whether a token is, from number and mass of those ranked before it. The first always is."""
    in_nucleus = (top_p >= 1.0) | (before.to(tl.float64) < top_p * total.to(tl.float64))
    return (count == 0) | (((top_k == 0) | (count < top_k)) & in_nucleus)


@triton.jit
def _best_before(
    logits, maxima, standing, top, position, slot, wishes, integers, numbers, bias_tokens, bias_values, marks, vocab, groups,
    GROUP: tl.constexpr, TILE: tl.constexpr, BIASES: tl.constexpr,
):
    """The largest key of (score, token) among tokens ranked before `standing`."""
    best = tl.full((TILE,), LOWEST, tl.int64)
    for first in range(0, vocab, TILE):
        if _reaches(maxima, first, standing, groups, GROUP, TILE):
            token = first + tl.arange(0, TILE)
            inside = token < vocab
            x = tl.load(logits + token, mask=inside, other=float("-inf")).to(tl.float32)
            x = adjusted(x, token, inside, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES)
            inside = inside & (key_of(x, token) > standing)
            best = tl.maximum(best, _scored(x, token, inside, top, slot, position, tl.load(integers + slot * 4), numbers))
    return tl.max(best, 0)


@triton.jit
def _before(
    logits, maxima, standing, top, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, groups,
    GROUP: tl.constexpr, TILE: tl.constexpr, BIASES: tl.constexpr,
):
    """Number and mass of the tokens ranked before `standing`."""
    count, before = tl.zeros((TILE,), tl.int64), tl.zeros((TILE,), tl.int64)
    temperature = tl.load(numbers + slot * 6).to(tl.float32)
    for first in range(0, vocab, TILE):
        if _reaches(maxima, first, standing, groups, GROUP, TILE):
            token = first + tl.arange(0, TILE)
            inside = token < vocab
            x = tl.load(logits + token, mask=inside, other=float("-inf")).to(tl.float32)
            x = adjusted(x, token, inside, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES)
            better = inside & (key_of(x, token) > standing)
            count += better.to(tl.int64)
            before += tl.where(better, mass_of(x, top, temperature), 0)
    return tl.sum(count, 0), tl.sum(before, 0)


@triton.jit
def _reaches(maxima, first, standing, groups, GROUP: tl.constexpr, TILE: tl.constexpr):
    """Whether a tile may have tokens ranked before `standing`."""
    group = first // GROUP + tl.arange(0, TILE // GROUP)
    highest = tl.load(maxima + group, mask=group < groups, other=float("-inf"))
    return tl.max(highest, 0) >= value_of(standing)


@triton.jit
def best_kept(
    logits, maxima, winners, ahead, standing, position, top_k, top_p, slot, wishes, integers, numbers, bias_tokens,
    bias_values, marks, vocab, groups, shares,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, TILE: tl.constexpr, SHARES: tl.constexpr, BIASES: tl.constexpr,
):
    """The token with the largest score among those that top_k and top_p keep."""
    token = token_of(_winner(winners, shares, SHARES))
    if (top_k > 0) | (top_p < 1.0):
        share = tl.arange(0, SHARES)
        count = tl.sum(tl.load(ahead + share * 3, mask=share < shares, other=0), 0)
        before = tl.sum(tl.load(ahead + share * 3 + 1, mask=share < shares, other=0), 0)
        total = tl.sum(tl.load(ahead + share * 3 + 2, mask=share < shares, other=0), 0)
        top = top_of(maxima, groups, GROUPS)
        while not _kept(count, before, total, top_k, top_p):
            best = _best_before(
                logits, maxima, standing, top, position, slot, wishes, integers, numbers, bias_tokens, bias_values, marks,
                vocab, groups, GROUP, TILE, BIASES,
            )
            token = token_of(best)
            standing = _standing(logits, token, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES)
            count, before = _before(
                logits, maxima, standing, top, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, groups,
                GROUP, TILE, BIASES,
            )
            count = tl.where(best == LOWEST, 0, count)  # logits that are no numbers: give up with a token
    return token


@triton.jit
def best_of_rest(
    logits, winners, ahead, draft, top, position, seed, candidate, chance, slot, wishes, numbers, bias_tokens, bias_values,
    marks, vocab, shares, SHARES: tl.constexpr, BIASES: tl.constexpr,
):
    """The token drawn from max(p - q, 0) by a row whose verdict is REST: of its candidates, or the winner of all others."""
    mass = masses_of_candidates(
        logits, candidate, top, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES
    )
    left = best_left(candidate, mass, chance.to(tl.float64), total_of(ahead, shares, SHARES), seed, position)
    other = _winner(winners, shares, SHARES)
    best = tl.maximum(left, tl.where(value_of(other) > float("-inf"), other, LOWEST))  # impossible tokens are no choice
    return tl.where(best == LOWEST, nothing_left(candidate, mass, draft), token_of(best))


@triton.jit
def total_of(ahead, shares, SHARES: tl.constexpr):
    """All mass of a row, the best token's being 1, float64."""
    share = tl.arange(0, SHARES)
    total = tl.sum(tl.load(ahead + share * 3 + 2, mask=share < shares, other=0), 0)
    return total.to(tl.float64) * (2.0**-40)
