"""Draws that read the logits once to three times, whatever the row wants, and rank no more than 64 tokens.

Five launches, each row's parameters read from its slot: the maxima of groups of tokens; for rows that draw by scores, the best
scores, what ranks before them, and the choice; and the choice for the others. How and why: `scores`, `head`. Behind the first
of them two more where rows may be drawn against drafts, one where drafts are drawn with their odds: `against`.
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
from headrace.kernels.sample.odds import Against, Odds
from headrace.kernels.sample.slots import SlotState
from headrace.kernels.sample.triton.adjusted import wishes_of
from headrace.kernels.sample.triton.against import decide, draw_with_odds, total_masses
from headrace.kernels.sample.triton.candidates import candidates_of
from headrace.kernels.sample.triton.give import give
from headrace.kernels.sample.triton.head import drawn_of_head, first_of_head, group_maxima, head_of, kept_of_head
from headrace.kernels.sample.triton.keys import token_of
from headrace.kernels.sample.triton.scores import best_kept, best_of_rest, best_scores, by_scores, tokens_ahead, top_of
from headrace.kernels.sample.triton.verdicts import DECIDED, PLAIN, REST
from headrace.kernels.tile import await_previous, let_next_start
from headrace.kernels.variant import Variant
from headrace.types import MAX_LOGIT_BIAS

_LEAST_GROUP = 64
_MOST_GROUPS = 4096
_TILE = 2048
_PROGRAMS_PER_PROCESSOR = 5
_MOST_SHARES = 128
_CHOOSING_WARPS = 8
_MORE_WARPS = 16
_Verdicts = tuple[Tensor, Tensor, Tensor, Odds]
"""verdicts [R], drafts [R], places [R]; and whose drafts those are."""


@triton.jit
def _choose_ranked(
    logits, slots, positions, integers, numbers, bias_tokens, bias_values, marks, maxima, kept_keys, verdicts, drawn,
    next_tokens, stride, vocab, groups,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, MOST: tl.constexpr, BIASES: tl.constexpr, COUNT: tl.constexpr,
    EARLY: tl.constexpr,
):
    """drawn [R] of rows that are greedy or have a small top_k; one row a program."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    verdict = PLAIN
    if verdicts is not None:
        verdict = tl.load(verdicts + row)
    if (verdict == PLAIN) & (by_scores(integers, numbers, slot, MOST) == 0):
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
            tokens, scaled, first = first_of_head(keys, k, temperature)
            mass = kept_of_head(keys, scaled, first, top_p, min_p, tl.sum(first, 0))
            token = drawn_of_head(tokens, scaled, mass, seed, position)
        give(token, row, slot, integers, numbers, marks, drawn, next_tokens, vocab, COUNT)


@triton.jit(do_not_specialize=["shares"])
def _choose_scored(
    logits, slots, positions, integers, numbers, bias_tokens, bias_values, marks, maxima, winners, ahead, standings, verdicts,
    drafts, places, ids, chances, counts, drawn, next_tokens, stride, vocab, groups, shares, drafts_of,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, TILE: tl.constexpr, SHARES: tl.constexpr, MOST: tl.constexpr,
    BIASES: tl.constexpr, COUNT: tl.constexpr, EARLY: tl.constexpr,
):
    """drawn [R] of the other rows; one row a program."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    verdict = PLAIN
    if verdicts is not None:
        verdict = tl.load(verdicts + row)
    if by_scores(integers, numbers, slot, MOST) & (verdict != DECIDED):
        wishes = wishes_of(slot, integers, numbers, bias_values, BIASES)
        position = tl.load(positions + row).to(tl.int64)
        top_k, top_p = tl.load(integers + slot * 4 + 1), tl.load(numbers + slot * 6 + 1)
        source = logits + row.to(tl.int64) * stride
        token = tl.full((), 0, tl.int64)
        if verdict == PLAIN:
            token = best_kept(
                source, maxima + row * groups, winners + row * shares, ahead + row * shares * 3, tl.load(standings + row),
                position, top_k, top_p, slot, wishes, integers, numbers, bias_tokens, bias_values, marks, vocab, groups, shares,
                GROUP, GROUPS, TILE, SHARES, BIASES,
            ).to(tl.int64)
        if verdicts is not None:
            if verdict == REST:
                candidate, chance = candidates_of(ids, chances, counts, slot, tl.load(places + row), drafts_of, MOST)
                token = best_of_rest(
                    source, winners + row * shares, ahead + row * shares * 3, tl.load(drafts + row).to(tl.int32),
                    top_of(maxima + row * groups, groups, GROUPS), position, tl.load(integers + slot * 4), candidate, chance,
                    slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, shares, SHARES, BIASES,
                ).to(tl.int64)
        give(token, row, slot, integers, numbers, marks, drawn, next_tokens, vocab, COUNT)


class _Launched:
    """The launches of a draw from logits [R, V]: what all of them have, and what they leave for each other."""

    def __init__(self, logits: Tensor, state: SlotState, slots: Tensor, positions: Tensor) -> None:
        rows, vocab = logits.shape
        self.rows, self.given, self.positions, self.state = rows, (logits, slots), positions, state.tensors()
        self.group = group_tokens(vocab)
        self.groups, self.tiles = triton.cdiv(vocab, self.group), triton.cdiv(vocab, _TILE)
        self.shares = shares_of_row(rows, self.tiles, card(logits.device).processors)
        self.maxima = logits.new_empty(rows, self.groups, dtype=torch.float32)
        self.winners = logits.new_empty(rows, self.shares, dtype=torch.int64)
        self.ahead = logits.new_empty(rows, self.shares, 3, dtype=torch.int64)
        self.standings = logits.new_empty(rows, dtype=torch.int64)
        self.kept_keys = logits.new_empty(rows, DEVICE_TOP_K, dtype=torch.int64)
        self.drawn = logits.new_empty(rows, dtype=torch.int64)
        self.sizes = logits.stride(0), vocab, self.groups
        self.widths = triton.next_power_of_2(self.groups), DEVICE_TOP_K, state.bias_tokens.shape[1]
        self.options = {"enable_fp_fusion": False, **early(logits.device)}

    def maxima_of_groups(self) -> None:
        group_maxima[(self.shares, self.rows)](
            *self.given, *self.state, self.maxima, *self.sizes, self.tiles, self.group, _TILE, self.widths[-1], **self.options
        )

    def decided(self, against: Against, next_tokens: Tensor | None) -> _Verdicts:
        """Of rows drawn against drafts, as far as `decide` can tell."""
        odds, verdicts = against.odds, self.drawn.new_empty(self.rows, dtype=torch.int32)
        drafts_of = odds.counts.shape[1]
        total_masses[(self.shares, self.rows)](
            *self.given, *self.state, self.maxima, against.places, odds.counts, self.ahead, *self.sizes, self.tiles, drafts_of,
            _TILE, *self.widths, **self.options,
        )
        groups, *widths = self.widths
        decide[(self.rows,)](
            *self.given, self.positions, *self.state, self.maxima, self.kept_keys, self.ahead, against.drafts, against.places,
            odds.ids, odds.chances, odds.counts, verdicts, self.drawn, next_tokens, *self.sizes, self.shares, drafts_of,
            self.group, groups, _MOST_SHARES, *widths, next_tokens is not None, num_warps=_CHOOSING_WARPS, **self.options,
        )
        return verdicts, against.drafts, against.places, odds

    def drafted(self, odds: Odds, place: int) -> _Verdicts:
        """Of rows that draw drafts."""
        verdicts, (_, slots) = self.drawn.new_empty(self.rows, dtype=torch.int32), self.given
        draw_with_odds[(self.rows,)](
            *self.given, self.positions, *self.state, self.maxima, self.kept_keys, odds.ids, odds.chances, odds.counts,
            odds.free.view(torch.int8), verdicts, self.drawn, *self.sizes, odds.counts.shape[1], place, self.group,
            *self.widths, num_warps=_CHOOSING_WARPS, **self.options,
        )
        return verdicts, slots, slots, odds  # none of these is at REST, which is where the others are read

    def _looking_warps(self, known: object, next_tokens: object) -> int:
        """Of the choice that may look at the vocabulary again. Found by compiling: those that leave no register in memory."""
        few = known is None and (next_tokens is not None or self.given[0].dtype == torch.float32)
        return _CHOOSING_WARPS if few else _MORE_WARPS

    def chosen(self, known: _Verdicts | None, next_tokens: Tensor | None) -> Tensor:
        """drawn, with all rows of which nothing is known yet, or no more than that."""
        verdicts, drafts, places, odds = known or (None,) * 4
        candidates = (odds.ids, odds.chances, odds.counts) if odds else (None,) * 3
        drafts_of = odds.counts.shape[1] if odds else None
        groups, most, biases = self.widths
        best_scores[(self.shares, self.rows)](
            *self.given, self.positions, *self.state, self.maxima, self.winners, verdicts, places, *candidates, *self.sizes,
            self.tiles, drafts_of, _TILE, *self.widths, **self.options,
        )
        tokens_ahead[(self.shares, self.rows)](
            *self.given, *self.state, self.maxima, self.winners, self.ahead, self.standings, verdicts, *self.sizes, self.tiles,
            _TILE, groups, _MOST_SHARES, most, biases, **self.options,
        )
        _choose_scored[(self.rows,)](
            *self.given, self.positions, *self.state, self.maxima, self.winners, self.ahead, self.standings, verdicts, drafts,
            places, *candidates, self.drawn, next_tokens, *self.sizes, self.shares, drafts_of, self.group, groups, _TILE,
            _MOST_SHARES, most, biases, next_tokens is not None, num_warps=self._looking_warps(known, next_tokens),
            **self.options,
        )
        _choose_ranked[(self.rows,)](
            *self.given, self.positions, *self.state, self.maxima, self.kept_keys, verdicts, self.drawn, next_tokens,
            *self.sizes, self.group, groups, most, biases, next_tokens is not None, num_warps=_CHOOSING_WARPS, **self.options,
        )
        return self.drawn


def draw(
    logits: Tensor, state: SlotState, slots: Tensor, positions: Tensor, next_tokens: Tensor | None = None,
    against: Against | None = None, drafted: tuple[Odds, int] | None = None,
) -> Tensor:
    """One token for each row: logits [R, V], slots and positions [R] -> [R] int64. See `sample.draw_on_device`, and of
    `drafted` `sample.draw_drafts`.
    """
    launched, known = _Launched(logits, state, slots, positions), None
    launched.maxima_of_groups()
    if against is not None:
        known = launched.decided(against, next_tokens)
    elif drafted is not None:
        known = launched.drafted(*drafted)
    return launched.chosen(known, next_tokens)


def group_tokens(vocab: int) -> int:
    """Tokens of a group: so many that a row has at most _MOST_GROUPS groups."""
    return max(_LEAST_GROUP, int(triton.next_power_of_2(triton.cdiv(vocab, _MOST_GROUPS))))


def shares_of_row(rows: int, tiles: int, processors: int) -> int:
    """Programs that share a row's tiles: together as many as the card runs at once, so that each looks up its slot once."""
    return max(1, min(tiles, _MOST_SHARES, processors * _PROGRAMS_PER_PROCESSOR // max(rows, 1)))


def _variants(dtype: str) -> tuple[Variant, ...]:
    """dtype: of the logits."""
    state = {"integers": "*i64", "numbers": "*fp64", "bias_tokens": "*i64", "bias_values": "*fp64", "marks": "*i32"}
    shape_of = {"stride": "i32", "vocab": "i32", "groups": "i32"}
    common = {"logits": f"*{dtype}", "slots": "*i64", "maxima": "*fp32"} | state | shape_of
    tiled, scoring = common | {"tiles": "i32"}, {"positions": "*i64", "winners": "*i64"}
    ahead = {"ahead": "*i64", "standings": "*i64"}
    scored = common | scoring | ahead | {"drawn": "*i64", "next_tokens": "*i64", "shares": "i32"}
    ranked = common | {"positions": "*i64", "kept_keys": "*i64", "drawn": "*i64", "next_tokens": "*i64"}
    odds = {"places": "*i64", "ids": "*i32", "chances": "*fp32", "counts": "*i32", "drafts_of": "i32"}
    deciding = ranked | odds | {"ahead": "*i64", "drafts": "*i64", "verdicts": "*i32", "shares": "i32"}
    drafting = {name: type_ for name, type_ in (ranked | odds).items() if name not in ("places", "next_tokens")}
    drafting |= {"free": "*i8", "place": "i32"}
    groups = {"GROUP": _LEAST_GROUP, "GROUPS": _MOST_GROUPS, "MOST": DEVICE_TOP_K, "BIASES": MAX_LOGIT_BIAS}
    whole = {"TILE": _TILE, "GROUPS": _MOST_GROUPS, "MOST": DEVICE_TOP_K, "BIASES": MAX_LOGIT_BIAS}
    shares = {"SHARES": _MOST_SHARES}
    maxima = {"GROUP": _LEAST_GROUP, "TILE": _TILE, "BIASES": MAX_LOGIT_BIAS}
    judged, massed = {"verdicts": "*i32"}, {"ahead": "*i64"} | {name: odds[name] for name in ("places", "counts", "drafts_of")}
    made = [
        _variant("maxima", group_maxima, tiled, maxima, 4),
        _variant("total-masses", total_masses, tiled | massed, whole, 4),
        _variant("draw-with-odds", draw_with_odds, drafting | judged, groups, _CHOOSING_WARPS),
        *_counting("decide", decide, deciding, groups | shares, _CHOOSING_WARPS, _CHOOSING_WARPS),
    ]
    for name, kernel, signature, constants, asked in (
        ("best-scores", best_scores, tiled | scoring, whole, judged | odds),
        ("ahead", tokens_ahead, tiled | {"winners": "*i64"} | ahead, whole | shares, judged),
    ):
        made += [
            _variant(name, kernel, signature, constants | dict.fromkeys(asked), 4),
            _variant(f"{name}-known", kernel, signature | asked, constants, 4),
        ]
    few, scoring_all, every = _CHOOSING_WARPS, whole | shares | groups, judged | odds | {"drafts": "*i64"}
    alone = few if dtype == "fp32" else _MORE_WARPS
    made += _counting("choose-scored", _choose_scored, scored, scoring_all | dict.fromkeys(every), few, alone)
    made += _counting("choose-scored-known", _choose_scored, scored | every, scoring_all, _MORE_WARPS, _MORE_WARPS)
    made += _counting("choose-ranked", _choose_ranked, ranked, groups | dict.fromkeys(judged), few, few)
    made += _counting("choose-ranked-known", _choose_ranked, ranked | judged, groups, few, few)
    return tuple(replace(variant, name=f"{variant.name}-{dtype}") for variant in made)


def _counting(
    name: str, kernel: object, signature: Mapping[str, str], constants: Mapping[str, object], warps: int, warps_alone: int
) -> tuple[Variant, Variant]:
    """Of a kernel that chooses: counting what it draws, and not."""
    alone = {key: type_ for key, type_ in signature.items() if key != "next_tokens"}
    return (
        _variant(f"{name}-and-count", kernel, signature, {**constants, "COUNT": True}, warps),
        _variant(name, kernel, alone, {**constants, "COUNT": False, "next_tokens": None}, warps_alone),
    )


def _variant(
    name: str, kernel: object, signature: Mapping[str, str], constants: Mapping[str, object], warps: int
) -> Variant:
    aligned = tuple(name for name, type_ in signature.items() if type_.startswith("*") or name in ("stride", "vocab"))
    return Variant(name, kernel, signature, constants, num_warps=warps, aligned=aligned, fp_fusion=False, early=True)


VARIANTS = tuple(variant for dtype in ("fp32", "bf16", "fp16") for variant in _variants(dtype))
