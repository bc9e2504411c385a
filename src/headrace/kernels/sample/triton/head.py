"""Greedy rows and rows with a small top_k.

Why the first k tokens are found without ranking the others: the vocabulary is cut into groups of neighbouring tokens, and the k
groups with the highest maxima (the lower group first among equals) hold the first k tokens of the ranking. For if a token's
group is not among them, each of those k groups has a token that ranks before it: a higher logit, or an equal one with a lower
id. So one pass writes each group's maximum; then one program a row picks groups, and tokens from these few groups.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.sample.triton.adjusted import adjusted, wishes_of
from headrace.kernels.sample.triton.gumbel import gumbel
from headrace.kernels.sample.triton.keys import LOWEST, floor_of_k, key_of, token_of, value_of
from headrace.kernels.tile import await_previous, let_next_start


@triton.jit
def group_maxima(
    logits, slots, integers, numbers, bias_tokens, bias_values, marks, maxima, stride, vocab, groups, tiles,
    GROUP: tl.constexpr, TILE: tl.constexpr, BIASES: tl.constexpr, EARLY: tl.constexpr,
):
    """maxima [R, groups]: the highest adjusted logit of each group of GROUP tokens. A row's programs share its tiles."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    wishes = wishes_of(slot, integers, numbers, bias_values, BIASES)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        group = tile * (TILE // GROUP) + tl.arange(0, TILE // GROUP)
        token = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        inside = token < vocab
        x = tl.load(logits + row.to(tl.int64) * stride + token, mask=inside, other=float("-inf")).to(tl.float32)
        x = adjusted(x, token, inside, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES)
        tl.store(maxima + row * groups + group, tl.max(x, 1), mask=group < groups)


@triton.jit
def _keep_reaching(keys, floor, kept_keys):
    """Writes the keys from floor on to kept_keys, where every thread may read them, and returns their number."""
    picked = keys >= floor
    places = tl.cumsum(picked.to(tl.int32), 0) - 1
    tl.debug_barrier()  # whatever was there has been read
    tl.store(kept_keys + places, keys, mask=picked)
    tl.debug_barrier()
    return tl.sum(picked.to(tl.int32), 0)


@triton.jit
def head_of(
    logits, maxima, kept_keys, k, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, groups,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, MOST: tl.constexpr, BIASES: tl.constexpr,
):
    """[MOST] keys of a row's tokens, with the first k of the ranking among them; LOWEST where there are fewer."""
    group = tl.arange(0, GROUPS)
    maximum = tl.load(maxima + group, mask=group < groups, other=float("-inf"))
    keys = tl.where(group < groups, key_of(maximum, group), LOWEST)
    lowest = tl.min(tl.where(group < groups, keys, 0x7FFFFFFFFFFFFFFF), 0)
    floor = floor_of_k(keys, k, lowest, MOST)
    count = _keep_reaching(keys, floor, kept_keys)
    at = tl.arange(0, MOST * GROUP)
    known = at // GROUP < count
    group = token_of(tl.load(kept_keys + at // GROUP, mask=known, other=0)).to(tl.int32)
    token = group * GROUP + at % GROUP
    inside = known & (token < vocab)
    x = tl.load(logits + token, mask=inside, other=float("-inf")).to(tl.float32)
    x = adjusted(x, token, inside, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES)
    keys = tl.where(inside, key_of(x, token), LOWEST)
    # Each of k groups has a token whose logit is not below the lowest of their maxima.
    floor = tl.where(count < k, LOWEST + 1, tl.maximum((floor >> 32) << 32, LOWEST + 1))
    count = _keep_reaching(keys, floor_of_k(keys, k, floor, MOST), kept_keys)
    place = tl.arange(0, MOST)
    return tl.load(kept_keys + place, mask=place < count, other=LOWEST)


@triton.jit
def first_of_head(keys, k, temperature):
    """Of keys [MOST] of (logit, token), temperature above 0: tokens, logits below the best over the temperature, and
    unnormalised probabilities, 0 but for the first k; all [MOST].
    """
    before = keys[:, None] > keys[None, :]  # [j, i]: j ranks before i
    value = value_of(keys)
    scaled = tl.div_rn(value - value_of(tl.max(keys, 0)), tl.zeros_like(value) + temperature)
    first = (tl.sum(before.to(tl.int32), 0) < k) & (keys > LOWEST)
    return token_of(keys).to(tl.int32), scaled, tl.where(first, tl.exp(scaled.to(tl.float64)), 0.0)


@triton.jit
def kept_of_head(keys, scaled, mass, top_p, min_p, total):
    """Of the same the probabilities, 0 also of what top_p, as a share of total, and min_p remove."""
    before = keys[:, None] > keys[None, :]
    reached = tl.sum(tl.where(before, mass[:, None], 0.0), 0)
    target = tl.where(top_p < 1.0, top_p * total, float("inf"))
    return tl.where((reached < target) & (scaled >= tl.log(min_p)), mass, 0.0)


@triton.jit
def drawn_of_head(token, scaled, mass, seed, position):
    """The token drawn from these."""
    scores = key_of(scaled + gumbel(seed, position, token), token)
    return token_of(tl.max(tl.where(mass > 0.0, scores, LOWEST), 0))
