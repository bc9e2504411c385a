"""Draws that read the logits once to three times, whatever the row wants, and rank no more than 64 tokens.

Five launches, each row's parameters read from its slot: the maxima of groups of tokens; for rows that draw by scores, the best
scores, what ranks before them, and the choice; and the choice for the others. How and why: `scores`, `head`.
No fused multiply-add (enable_fp_fusion): the reference rounds each operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.card import card
from headrace.kernels.dispatch import early
from headrace.kernels.sample import DEVICE_TOP_K
from headrace.kernels.sample.slots import GENERATED_ONCE, SlotState
from headrace.kernels.sample.triton.adjusted import is_penalised, wishes_of
from headrace.kernels.sample.triton.head import draw_of_head, group_maxima, head_of
from headrace.kernels.sample.triton.keys import token_of
from headrace.kernels.sample.triton.scores import best_kept, best_scores, by_scores, tokens_ahead
from headrace.kernels.tile import await_previous, let_next_start
from headrace.kernels.variant import Variant
from headrace.types import MAX_LOGIT_BIAS

_LEAST_GROUP = 64
_MOST_GROUPS = 4096
_TILE = 2048
_PROGRAMS_PER_PROCESSOR = 5
_MOST_SHARES = 128
_CHOOSING_WARPS = 8
_COUNT_ONCE = tl.constexpr(GENERATED_ONCE)


@triton.jit
def _give(token, row, slot, integers, numbers, marks, drawn, next_tokens, vocab, COUNT: tl.constexpr):
    """The row's token; with COUNT also the slot's next token, its count and its mark."""
    tl.store(drawn + row, token)
    if COUNT:
        tl.store(next_tokens + slot, token)
        tl.store(integers + slot * 4 + 3, tl.load(integers + slot * 4 + 3) + 1)
        if is_penalised(numbers, slot):
            mark = marks + slot * vocab + token
            tl.store(mark, tl.load(mark) + _COUNT_ONCE)


@triton.jit
def _choose_ranked(
    logits, slots, positions, integers, numbers, bias_tokens, bias_values, marks, maxima, kept_keys, drawn, next_tokens,
    stride, vocab, groups,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, MOST: tl.constexpr, BIASES: tl.constexpr, COUNT: tl.constexpr,
    EARLY: tl.constexpr,
):
    """drawn [R] of rows that are greedy or have a small top_k; one row a program."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    if not by_scores(integers, numbers, slot, MOST):
        wishes = wishes_of(slot, integers, numbers, bias_values, BIASES)
        seed, position = tl.load(integers + slot * 4), tl.load(positions + row).to(tl.int64)
        temperature, top_p = tl.load(numbers + slot * 6).to(tl.float32), tl.load(numbers + slot * 6 + 1)
        top_k, min_p = tl.load(integers + slot * 4 + 1), tl.load(numbers + slot * 6 + 2).to(tl.float32)
        k = tl.where(temperature == 0.0, 1, top_k).to(tl.int32)
        keys = head_of(
            logits + row.to(tl.int64) * stride, maxima + row * groups, kept_keys + row * MOST, k, slot, wishes,
            numbers, bias_tokens, bias_values, marks, vocab, groups, GROUP, GROUPS, MOST, BIASES,
        )
        token = token_of(tl.max(keys, 0))
        if temperature != 0.0:
            token = draw_of_head(keys, k, seed, position, temperature, top_p, min_p)
        _give(token, row, slot, integers, numbers, marks, drawn, next_tokens, vocab, COUNT)


@triton.jit(do_not_specialize=["shares"])
def _choose_scored(
    logits, slots, positions, integers, numbers, bias_tokens, bias_values, marks, maxima, winners, ahead, standings, drawn,
    next_tokens, stride, vocab, groups, shares,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, TILE: tl.constexpr, SHARES: tl.constexpr, MOST: tl.constexpr,
    BIASES: tl.constexpr, COUNT: tl.constexpr, EARLY: tl.constexpr,
):
    """drawn [R] of the other rows; one row a program."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    if by_scores(integers, numbers, slot, MOST):
        wishes = wishes_of(slot, integers, numbers, bias_values, BIASES)
        position = tl.load(positions + row).to(tl.int64)
        top_k, top_p = tl.load(integers + slot * 4 + 1), tl.load(numbers + slot * 6 + 1)
        token = best_kept(
            logits + row.to(tl.int64) * stride, maxima + row * groups, winners + row * shares, ahead + row * shares * 3,
            tl.load(standings + row), position, top_k, top_p, slot, wishes, integers, numbers, bias_tokens, bias_values,
            marks, vocab, groups, shares, GROUP, GROUPS, TILE, SHARES, BIASES,
        )
        _give(token, row, slot, integers, numbers, marks, drawn, next_tokens, vocab, COUNT)


def draw(
    logits: Tensor, state: SlotState, slots: Tensor, positions: Tensor, next_tokens: Tensor | None = None
) -> Tensor:
    """One token for each row: logits [R, V], slots and positions [R] -> [R] int64. See `sample.draw_on_device`."""
    rows, vocab = logits.shape
    group = group_tokens(vocab)
    groups, tiles = triton.cdiv(vocab, group), triton.cdiv(vocab, _TILE)
    shares = shares_of_row(rows, tiles, card(logits.device).processors)
    maxima = logits.new_empty(rows, groups, dtype=torch.float32)
    winners = logits.new_empty(rows, shares, dtype=torch.int64)
    ahead = logits.new_empty(rows, shares, 3, dtype=torch.int64)
    standings = logits.new_empty(rows, dtype=torch.int64)
    kept_keys = logits.new_empty(rows, DEVICE_TOP_K, dtype=torch.int64)
    drawn = logits.new_empty(rows, dtype=torch.int64)
    launch = {"enable_fp_fusion": False, **early(logits.device)}
    stride, biases, all_groups = logits.stride(0), state.bias_tokens.shape[1], triton.next_power_of_2(groups)
    group_maxima[(shares, rows)](
        logits, slots, *state.tensors(), maxima, stride, vocab, groups, tiles, group, _TILE, biases, **launch
    )
    best_scores[(shares, rows)](
        logits, slots, positions, *state.tensors(), maxima, winners, stride, vocab, groups, tiles, _TILE, all_groups,
        DEVICE_TOP_K, biases, **launch,
    )
    tokens_ahead[(shares, rows)](
        logits, slots, *state.tensors(), maxima, winners, ahead, standings, stride, vocab, groups, tiles, _TILE, all_groups,
        _MOST_SHARES, DEVICE_TOP_K, biases, **launch,
    )
    _choose_scored[(rows,)](
        logits, slots, positions, *state.tensors(), maxima, winners, ahead, standings, drawn, next_tokens, stride, vocab,
        groups, shares, group, all_groups, _TILE, _MOST_SHARES, DEVICE_TOP_K, biases, next_tokens is not None,
        num_warps=_CHOOSING_WARPS, **launch,
    )
    _choose_ranked[(rows,)](
        logits, slots, positions, *state.tensors(), maxima, kept_keys, drawn, next_tokens, stride, vocab, groups, group,
        all_groups, DEVICE_TOP_K, biases, next_tokens is not None, num_warps=_CHOOSING_WARPS, **launch,
    )
    return drawn


def group_tokens(vocab: int) -> int:
    """Tokens of a group: so many that a row has at most _MOST_GROUPS groups."""
    return max(_LEAST_GROUP, int(triton.next_power_of_2(triton.cdiv(vocab, _MOST_GROUPS))))


def shares_of_row(rows: int, tiles: int, processors: int) -> int:
    """Programs that share a row's tiles: together as many as the card runs at once, so that each looks up its slot once."""
    return max(1, min(tiles, _MOST_SHARES, processors * _PROGRAMS_PER_PROCESSOR // max(rows, 1)))


def _variants(dtype: str) -> tuple[Variant, ...]:
    """dtype: of the logits. Those of 16 bits are a captured step's, which always counts what it draws."""
    state = {"integers": "*i64", "numbers": "*fp64", "bias_tokens": "*i64", "bias_values": "*fp64", "marks": "*i32"}
    shape_of = {"stride": "i32", "vocab": "i32", "groups": "i32"}
    common = {"logits": f"*{dtype}", "slots": "*i64", "maxima": "*fp32"} | state | shape_of
    tiled, scoring = common | {"tiles": "i32"}, {"positions": "*i64", "winners": "*i64"}
    ahead = {"ahead": "*i64", "standings": "*i64"}
    scored = common | scoring | ahead | {"drawn": "*i64", "next_tokens": "*i64", "shares": "i32"}
    ranked = common | {"positions": "*i64", "kept_keys": "*i64", "drawn": "*i64", "next_tokens": "*i64"}
    groups = {"GROUP": _LEAST_GROUP, "GROUPS": _MOST_GROUPS, "MOST": DEVICE_TOP_K, "BIASES": MAX_LOGIT_BIAS}
    whole = {"TILE": _TILE, "GROUPS": _MOST_GROUPS, "MOST": DEVICE_TOP_K, "BIASES": MAX_LOGIT_BIAS}
    shared = whole | {"SHARES": _MOST_SHARES}
    maxima = {"GROUP": _LEAST_GROUP, "TILE": _TILE, "BIASES": MAX_LOGIT_BIAS}
    found = [
        _variant("maxima", group_maxima, tiled, maxima, 4),
        _variant("best-scores", best_scores, tiled | scoring, whole, 4),
        _variant("ahead", tokens_ahead, tiled | {"winners": "*i64"} | ahead, shared, 4),
    ]
    for kernel, signature, constants in ((_choose_scored, scored, shared | groups), (_choose_ranked, ranked, groups)):
        name = kernel.__name__[1:].replace("_", "-")
        counting, plain = {**constants, "COUNT": True}, {**constants, "COUNT": False, "next_tokens": None}
        found.append(_variant(f"{name}-and-count", kernel, signature, counting, _CHOOSING_WARPS))
        unasked = {key: type_ for key, type_ in signature.items() if key != "next_tokens"}
        if dtype == "fp32":
            found.append(_variant(name, kernel, unasked, plain, _CHOOSING_WARPS))
    return tuple(replace(variant, name=f"{variant.name}-{dtype}") for variant in found)


def _variant(
    name: str, kernel: object, signature: Mapping[str, str], constants: Mapping[str, object], warps: int
) -> Variant:
    aligned = tuple(name for name, type_ in signature.items() if type_.startswith("*") or name in ("stride", "vocab"))
    return Variant(name, kernel, signature, constants, num_warps=warps, aligned=aligned, fp_fusion=False, early=True)


VARIANTS = tuple(variant for dtype in ("fp32", "bf16", "fp16") for variant in _variants(dtype))
