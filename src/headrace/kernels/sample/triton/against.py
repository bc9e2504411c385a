"""Drafts with odds: drawn from the best tokens of a drafter's logits, and accepted or not.

Decided here, ahead of the passes over the vocabulary, by a program a row: whatever ranks no more than 64 tokens, which is all
of a row with a small top_k or a nucleus that lies among them; and of the others whether the draft is accepted. If it is not,
max(p - q, 0) is p but for the candidates, so that the pass that draws leaves these out.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.sample.odds import ACCEPTING
from headrace.kernels.sample.triton.adjusted import adjusted, wishes_of
from headrace.kernels.sample.triton.candidates import (
    best_left,
    candidates_of,
    masses_of_candidates,
    nothing_left,
    of_draft,
)
from headrace.kernels.sample.triton.give import give
from headrace.kernels.sample.triton.gumbel import uniform
from headrace.kernels.sample.triton.head import drawn_of_head, first_of_head, head_of, kept_of_head
from headrace.kernels.sample.triton.keys import LOWEST, token_of
from headrace.kernels.sample.triton.scores import by_scores, mass_of, top_of, total_of
from headrace.kernels.sample.triton.verdicts import DECIDED, PLAIN, REST
from headrace.kernels.tile import await_previous, let_next_start

_ACCEPTING = tl.constexpr(ACCEPTING)


@triton.jit
def _is_known(places, counts, row, slot, drafts_of):
    """Whether the row has a draft whose odds are known."""
    place = tl.load(places + row)
    return tl.load(counts + slot * drafts_of + place, mask=place >= 0, other=0) > 0


@triton.jit
def total_masses(
    logits, slots, integers, numbers, bias_tokens, bias_values, marks, maxima, places, counts, ahead, stride, vocab, groups,
    tiles, drafts_of, TILE: tl.constexpr, GROUPS: tl.constexpr, MOST: tl.constexpr, BIASES: tl.constexpr, EARLY: tl.constexpr,
):
    """ahead [R, programs, 3]: last, all mass of rows without top_k that have a draft with odds; without top_p, of min_p."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    whole = (tl.load(integers + slot * 4 + 1) == 0) & by_scores(integers, numbers, slot, MOST)
    if whole & _is_known(places, counts, row, slot, drafts_of):
        wishes = wishes_of(slot, integers, numbers, bias_values, BIASES)
        temperature, top_p = tl.load(numbers + slot * 6).to(tl.float32), tl.load(numbers + slot * 6 + 1)
        least = tl.where(top_p < 1.0, float("-inf"), tl.log(tl.load(numbers + slot * 6 + 2).to(tl.float32)))
        top = top_of(maxima + row * groups, groups, GROUPS)
        total = tl.zeros((TILE,), tl.int64)
        for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
            token = tile * TILE + tl.arange(0, TILE)
            inside = token < vocab
            x = tl.load(logits + row.to(tl.int64) * stride + token, mask=inside, other=float("-inf")).to(tl.float32)
            x = adjusted(x, token, inside, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES)
            kept = inside & (tl.div_rn(x - top, tl.zeros_like(x) + temperature) >= least)
            total += tl.where(kept, mass_of(x, top, temperature), 0)
        tl.store(ahead + (row * tl.num_programs(0) + tl.program_id(0)) * 3 + 2, tl.sum(total, 0))


@triton.jit(do_not_specialize=["shares"])
def decide(
    logits, slots, positions, integers, numbers, bias_tokens, bias_values, marks, maxima, kept_keys, ahead, drafts, places, ids,
    chances, counts, verdicts, drawn, next_tokens, stride, vocab, groups, shares, drafts_of,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, SHARES: tl.constexpr, MOST: tl.constexpr, BIASES: tl.constexpr,
    COUNT: tl.constexpr, EARLY: tl.constexpr,
):
    """verdicts [R], and drawn [R] of those that are decided."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    verdict, top_k = tl.full((), PLAIN, tl.int32), tl.load(integers + slot * 4 + 1)
    if _is_known(places, counts, row, slot, drafts_of) & (top_k <= MOST):
        wishes = wishes_of(slot, integers, numbers, bias_values, BIASES)
        seed, position = tl.load(integers + slot * 4), tl.load(positions + row).to(tl.int64)
        temperature, top_p = tl.load(numbers + slot * 6).to(tl.float32), tl.load(numbers + slot * 6 + 1)
        min_p, draft = tl.load(numbers + slot * 6 + 2).to(tl.float32), tl.load(drafts + row).to(tl.int32)
        candidate, chance = candidates_of(ids, chances, counts, slot, tl.load(places + row), drafts_of, MOST)
        source = logits + row.to(tl.int64) * stride
        fell = uniform(seed + _ACCEPTING, position, draft * 0).to(tl.float64)
        threshold, token = fell * of_draft(candidate, chance, draft).to(tl.float64), draft.to(tl.int64)
        if (top_k == 0) & (top_p >= 1.0):
            top = top_of(maxima + row * groups, groups, GROUPS)
            mass = masses_of_candidates(
                source, candidate, top, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES
            )
            total = total_of(ahead + row * shares * 3, shares, SHARES)
            verdict = tl.where(threshold * total < of_draft(candidate, mass, draft), DECIDED, REST)
        else:
            k = tl.where(top_k == 0, MOST, top_k).to(tl.int32)
            keys = head_of(
                source, maxima + row * groups, kept_keys + row * MOST, k, slot, wishes, numbers, bias_tokens, bias_values,
                marks, vocab, groups, GROUP, GROUPS, MOST, BIASES,
            )
            tokens, scaled, first = first_of_head(keys, k, temperature)
            reached = tl.sum(first, 0)
            all_mass = tl.where(top_k == 0, total_of(ahead + row * shares * 3, shares, SHARES), reached)
            verdict = tl.where(reached >= top_p * all_mass, DECIDED, PLAIN)
            mass = kept_of_head(keys, scaled, first, top_p, min_p, all_mass)
            total = tl.sum(mass, 0)
            if threshold * total >= of_draft(tokens, mass, draft):
                q = tl.sum(tl.where(candidate[:, None] == tokens[None, :], chance[:, None], 0.0), 0).to(tl.float64)
                key = best_left(tokens, mass, q, total, seed, position)
                token = tl.where(key == LOWEST, nothing_left(tokens, mass, draft), token_of(key)).to(tl.int64)
        if verdict == DECIDED:
            give(token, row, slot, integers, numbers, marks, drawn, next_tokens, vocab, COUNT)
    tl.store(verdicts + row, verdict)


@triton.jit(do_not_specialize=["place"])
def draw_with_odds(
    logits, slots, positions, integers, numbers, bias_tokens, bias_values, marks, maxima, kept_keys, ids, chances, counts, free,
    verdicts, drawn, stride, vocab, groups, drafts_of, place,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, MOST: tl.constexpr, BIASES: tl.constexpr, EARLY: tl.constexpr,
):
    """verdicts [R]; and of rows that are decided, since their slots are free, drawn [R] and the odds of draft `place`."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    temperature = tl.load(numbers + slot * 6).to(tl.float32)
    known, at = (tl.load(free + slot) != 0) & (temperature != 0.0), slot * drafts_of + place
    if known:
        wishes = wishes_of(slot, integers, numbers, bias_values, BIASES)
        seed, position = tl.load(integers + slot * 4), tl.load(positions + row).to(tl.int64)
        top_k, top_p = tl.load(integers + slot * 4 + 1), tl.load(numbers + slot * 6 + 1)
        min_p = tl.load(numbers + slot * 6 + 2).to(tl.float32)
        k = tl.where((top_k == 0) | (top_k > MOST), MOST, top_k).to(tl.int32)
        keys = head_of(
            logits + row.to(tl.int64) * stride, maxima + row * groups, kept_keys + row * MOST, k, slot, wishes, numbers,
            bias_tokens, bias_values, marks, vocab, groups, GROUP, GROUPS, MOST, BIASES,
        )
        token, scaled, first = first_of_head(keys, k, temperature)
        mass = kept_of_head(keys, scaled, first, top_p, min_p, tl.sum(first, 0))
        c = at * MOST + tl.arange(0, MOST)
        tl.store(ids + c, tl.where(keys > LOWEST, token, -1))
        tl.store(chances + c, (mass / tl.sum(mass, 0)).to(tl.float32))
        tl.store(drawn + row, drawn_of_head(token, scaled, mass, seed, position))
    tl.store(counts + at, tl.where(known, MOST, 0))
    tl.store(verdicts + row, tl.where(known, DECIDED, PLAIN))
