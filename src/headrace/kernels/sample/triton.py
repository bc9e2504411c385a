"""Draws that read the logits once: greedy rows, rows with a small top_k, rows that draw from the whole vocabulary.

Why the first k tokens are found without ranking the others: the vocabulary is cut into groups of neighbouring tokens, and the k
groups with the highest maxima (the lower group first among equals) hold the first k tokens of the ranking. For if a token's
group is not among them, each of those k groups has a token that ranks before it: a higher logit, or an equal one with a lower
id. So one pass writes each group's maximum; then one program a row picks groups, and tokens from these few groups.

Three launches whatever the rows want, each row's parameters read from its slot: maxima, the draw over everything for rows that
want it, and the choice. No fused multiply-add anywhere (enable_fp_fusion): the reference rounds after each operation.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from headrace.kernels.card import card
from headrace.kernels.sample import DEVICE_TOP_K
from headrace.kernels.sample.slots import ENDS_MESSAGE, GENERATED_ONCE, GENERATED_SHIFT, SlotState
from headrace.kernels.tile import INTERPRETED
from headrace.kernels.variant import Variant
from headrace.types import MAX_LOGIT_BIAS

_LEAST_GROUP = 64
_MOST_GROUPS = 4096
_TILE = 2048
_PROGRAMS_PER_PROCESSOR = 5
_CHOOSING_WARPS = 8
_LOWEST = tl.constexpr(-(2**63))
_ENDS = tl.constexpr(ENDS_MESSAGE)
_COUNT_SHIFT = tl.constexpr(GENERATED_SHIFT)
_COUNT_ONCE = tl.constexpr(GENERATED_ONCE)
_GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
_MULTIPLY_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _key(x, token):
    """int64 that sorts as (x upwards, token downwards): fp32 bits, reversed where negative, above 2^31 - 1 - token."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)  # + 0.0: -0.0 equals 0.0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)


@triton.jit
def _token_of(key):
    return tl.where(key == _LOWEST, 0, 0x7FFFFFFF - (key & 0x7FFFFFFF))  # 0 where every logit is -inf, as the reference has it


@triton.jit
def _floor_of_k(keys, k, low, MOST: tl.constexpr):
    """A key that k to MOST of the different keys [N] reach, by bisection from `low`, which k or all do; k <= MOST."""
    high = tl.max(keys, 0) + 1  # reached by none
    reached = tl.sum((keys >= low).to(tl.int32), 0)
    while reached > MOST:
        middle = (low & high) + ((low ^ high) >> 1)
        found = tl.sum((keys >= middle).to(tl.int32), 0)
        enough = found >= k
        low = tl.where(enough, middle, low)
        reached = tl.where(enough, found, reached)
        high = tl.where(enough, high, middle)
    return low


@triton.jit
def _penalised(numbers, slot):
    presence, frequency = tl.load(numbers + slot * 6 + 3), tl.load(numbers + slot * 6 + 4)
    return (presence != 0.0) | (frequency != 0.0) | (tl.load(numbers + slot * 6 + 5) != 1.0)


@triton.jit
def _wishes(slot, integers, numbers, bias_values, BIASES: tl.constexpr):
    """(first logit_bias or 0, whether marks matter, whether the message is held open), loaded together before any is used."""
    bias = tl.load(bias_values + slot * BIASES)
    held_open = tl.load(integers + slot * 4 + 3) < tl.load(integers + slot * 4 + 2)
    return bias.to(tl.float32), held_open | _penalised(numbers, slot), held_open


@triton.jit
def _adjusted(x, token, inside, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES: tl.constexpr):
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


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * _MULTIPLY_1
    x = (x ^ (x >> 27)) * _MULTIPLY_2
    return x ^ (x >> 31)


@triton.jit
def _log1p_of_minus(u):
    """log(1 - u) for 0 < u < 1. What interprets has no log1p: log(w) * u / (1 - w) with w = 1 - u rounded (Kahan)."""
    if INTERPRETED:
        rounded = 1.0 - u
        lost = tl.where(rounded < 1.0, 1.0 - rounded, 1.0)
        return tl.where(rounded < 1.0, tl.log(rounded) * (u / lost), -u)
    else:
        return libdevice.log1p(-u)


@triton.jit
def _gumbel(seed, position, token):
    """`noise.gumbel` in fp32."""
    key = _mix(_mix(seed.to(tl.uint64) + _GAMMA) + position.to(tl.uint64))
    bits = _mix(token.to(tl.uint64) * _GAMMA + key)
    uniform = ((bits >> 11) + 1).to(tl.float32) * (2.0**-53)
    return -tl.log(-_log1p_of_minus(tl.minimum(uniform, 1.0 - 2.0**-24)))


@triton.jit
def _maxima(
    logits, slots, integers, numbers, bias_tokens, bias_values, marks, maxima, stride, vocab, groups, tiles,
    GROUP: tl.constexpr, TILE: tl.constexpr, BIASES: tl.constexpr,
):
    """maxima [R, groups]: the highest adjusted logit of each group of GROUP tokens. A row's programs share its tiles."""
    row = tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    wishes = _wishes(slot, integers, numbers, bias_values, BIASES)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        group = tile * (TILE // GROUP) + tl.arange(0, TILE // GROUP)
        token = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        inside = token < vocab
        x = tl.load(logits + row.to(tl.int64) * stride + token, mask=inside, other=float("-inf"))
        x = _adjusted(x, token, inside, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES)
        tl.store(maxima + row * groups + group, tl.max(x, 1), mask=group < groups)


@triton.jit
def _draws_whole(integers, numbers, slot):
    """Whether the row draws from every token: a temperature, no top_k, no top_p."""
    temperature, top_p = tl.load(numbers + slot * 6), tl.load(numbers + slot * 6 + 1)
    return (temperature != 0.0) & (top_p >= 1.0) & (tl.load(integers + slot * 4 + 1) == 0)


@triton.jit
def _whole(
    logits, slots, positions, integers, numbers, bias_tokens, bias_values, marks, maxima, winners, stride, vocab,
    groups, tiles, TILE: tl.constexpr, GROUPS: tl.constexpr, BIASES: tl.constexpr,
):
    """winners [R, programs]: of rows that draw from every token, the key of (score, token) of each program's best."""
    row = tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    if _draws_whole(integers, numbers, slot):
        wishes = _wishes(slot, integers, numbers, bias_values, BIASES)
        temperature = tl.load(numbers + slot * 6).to(tl.float32)
        least = tl.log(tl.load(numbers + slot * 6 + 2).to(tl.float32))
        seed, position = tl.load(integers + slot * 4), tl.load(positions + row).to(tl.int64)
        group = tl.arange(0, GROUPS)
        top = tl.max(tl.load(maxima + row * groups + group, mask=group < groups, other=float("-inf")), 0)
        best = tl.full((TILE,), _LOWEST, tl.int64)
        for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
            token = tile * TILE + tl.arange(0, TILE)
            inside = token < vocab
            x = tl.load(logits + row.to(tl.int64) * stride + token, mask=inside, other=float("-inf"))
            x = _adjusted(x, token, inside, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES)
            scaled = tl.div_rn(x - top, tl.zeros_like(x) + temperature)
            scores = _key(scaled + _gumbel(seed, position, token), token)
            best = tl.maximum(best, tl.where((scaled >= least) & inside, scores, _LOWEST))
        tl.store(winners + row * tl.num_programs(0) + tl.program_id(0), tl.max(best, 0))


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
def _head(
    logits, maxima, kept_keys, k, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, groups,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, MOST: tl.constexpr, BIASES: tl.constexpr,
):
    """[MOST] keys of a row's tokens, with the first k of the ranking among them; _LOWEST where there are fewer."""
    group = tl.arange(0, GROUPS)
    maximum = tl.load(maxima + group, mask=group < groups, other=float("-inf"))
    keys = tl.where(group < groups, _key(maximum, group), _LOWEST)
    lowest = tl.min(tl.where(group < groups, keys, 0x7FFFFFFFFFFFFFFF), 0)
    floor = _floor_of_k(keys, k, lowest, MOST)
    count = _keep_reaching(keys, floor, kept_keys)
    at = tl.arange(0, MOST * GROUP)
    known = at // GROUP < count
    group = _token_of(tl.load(kept_keys + at // GROUP, mask=known, other=0)).to(tl.int32)
    token = group * GROUP + at % GROUP
    inside = known & (token < vocab)
    x = tl.load(logits + token, mask=inside, other=float("-inf"))
    x = _adjusted(x, token, inside, slot, wishes, numbers, bias_tokens, bias_values, marks, vocab, BIASES)
    keys = tl.where(inside, _key(x, token), _LOWEST)
    # Each of k groups has a token whose logit is not below the lowest of their maxima.
    floor = tl.where(count < k, _LOWEST + 1, tl.maximum((floor >> 32) << 32, _LOWEST + 1))
    count = _keep_reaching(keys, _floor_of_k(keys, k, floor, MOST), kept_keys)
    place = tl.arange(0, MOST)
    return tl.load(kept_keys + place, mask=place < count, other=_LOWEST)


@triton.jit
def _draw_of_head(keys, k, seed, position, temperature, top_p, min_p):
    """The token drawn from the first k of the keys [MOST] of (logit, token); temperature above 0."""
    before = keys[:, None] > keys[None, :]  # [j, i]: j ranks before i
    token = _token_of(keys).to(tl.int32)
    value = _value_of(keys)
    scaled = tl.div_rn(value - _value_of(tl.max(keys, 0)), tl.zeros_like(value) + temperature)
    kept = (tl.sum(before.to(tl.int32), 0) < k) & (keys > _LOWEST)
    mass = tl.where(kept, tl.exp(scaled.to(tl.float64)), 0.0)
    reached = tl.sum(tl.where(before, mass[:, None], 0.0), 0)
    target = tl.where(top_p < 1.0, top_p * tl.sum(mass, 0), float("inf"))
    kept = kept & (mass > 0.0) & (reached < target) & (scaled >= tl.log(min_p))
    scores = _key(scaled + _gumbel(seed, position, token), token)
    return _token_of(tl.max(tl.where(kept, scores, _LOWEST), 0))


@triton.jit
def _value_of(key):
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _choose(
    logits, slots, positions, integers, numbers, bias_tokens, bias_values, marks, maxima, winners, kept_keys, drawn,
    next_tokens, stride, vocab, groups, shares,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, SHARES: tl.constexpr, MOST: tl.constexpr, BIASES: tl.constexpr,
    COUNT: tl.constexpr,
):
    """drawn [R]: one row's token a program; with COUNT also the slot's next token, its count and its mark."""
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    wishes = _wishes(slot, integers, numbers, bias_values, BIASES)
    seed, position = tl.load(integers + slot * 4), tl.load(positions + row).to(tl.int64)
    temperature, top_p = tl.load(numbers + slot * 6).to(tl.float32), tl.load(numbers + slot * 6 + 1)
    top_k, min_p = tl.load(integers + slot * 4 + 1), tl.load(numbers + slot * 6 + 2).to(tl.float32)
    if _draws_whole(integers, numbers, slot):
        share = tl.arange(0, SHARES)
        token = _token_of(tl.max(tl.load(winners + row * shares + share, mask=share < shares, other=_LOWEST), 0))
    else:
        k = tl.where(temperature == 0.0, 1, tl.minimum(top_k, MOST)).to(tl.int32)
        keys = _head(
            logits + row.to(tl.int64) * stride, maxima + row * groups, kept_keys + row * MOST, k, slot, wishes,
            numbers, bias_tokens, bias_values, marks, vocab, groups, GROUP, GROUPS, MOST, BIASES,
        )
        if temperature == 0.0:
            token = _token_of(tl.max(keys, 0))
        else:
            token = _draw_of_head(keys, k, seed, position, temperature, top_p, min_p)
    tl.store(drawn + row, token)
    if COUNT:
        tl.store(next_tokens + slot, token)
        tl.store(integers + slot * 4 + 3, tl.load(integers + slot * 4 + 3) + 1)
        if _penalised(numbers, slot):
            mark = marks + slot * vocab + token
            tl.store(mark, tl.load(mark) + _COUNT_ONCE)


def draw(
    logits: Tensor, state: SlotState, slots: Tensor, positions: Tensor, next_tokens: Tensor | None = None
) -> Tensor:
    """One token for each row: logits [R, V] float32, slots and positions [R] -> [R] int64. See `sample.draw_on_device`."""
    rows, vocab = logits.shape
    group = group_tokens(vocab)
    groups, tiles = triton.cdiv(vocab, group), triton.cdiv(vocab, _TILE)
    shares = shares_of_row(rows, tiles, card(logits.device).processors)
    maxima = logits.new_empty(rows, groups)
    winners = logits.new_empty(rows, shares, dtype=torch.int64)
    kept_keys = logits.new_empty(rows, DEVICE_TOP_K, dtype=torch.int64)
    drawn = logits.new_empty(rows, dtype=torch.int64)
    stride, biases, all_groups = logits.stride(0), state.bias_tokens.shape[1], triton.next_power_of_2(groups)
    _maxima[(shares, rows)](
        logits, slots, *state.tensors(), maxima, stride, vocab, groups, tiles, group, _TILE, biases, enable_fp_fusion=False
    )
    _whole[(shares, rows)](
        logits, slots, positions, *state.tensors(), maxima, winners, stride, vocab, groups, tiles, _TILE, all_groups, biases,
        enable_fp_fusion=False,
    )
    _choose[(rows,)](
        logits, slots, positions, *state.tensors(), maxima, winners, kept_keys, drawn, next_tokens, stride, vocab, groups,
        shares, group, all_groups, triton.next_power_of_2(shares), DEVICE_TOP_K, biases, next_tokens is not None,
        num_warps=_CHOOSING_WARPS, enable_fp_fusion=False,
    )
    return drawn


def group_tokens(vocab: int) -> int:
    """Tokens of a group: so many that a row has at most _MOST_GROUPS groups."""
    return max(_LEAST_GROUP, int(triton.next_power_of_2(triton.cdiv(vocab, _MOST_GROUPS))))


def shares_of_row(rows: int, tiles: int, processors: int) -> int:
    """Programs that share a row's tiles: together as many as the card runs at once, so that each looks up its slot once."""
    return max(1, min(tiles, processors * _PROGRAMS_PER_PROCESSOR // max(rows, 1)))


def _variants() -> tuple[Variant, ...]:
    state = {"integers": "*i64", "numbers": "*fp64", "bias_tokens": "*i64", "bias_values": "*fp64", "marks": "*i32"}
    shape_of = {"stride": "i32", "vocab": "i32", "groups": "i32"}
    common = {"logits": "*fp32", "slots": "*i64", "maxima": "*fp32"} | state | shape_of
    tiled = common | {"tiles": "i32"}
    drawing = {"positions": "*i64", "winners": "*i64"}
    choosing = common | drawing | {"kept_keys": "*i64", "drawn": "*i64", "shares": "i32"}
    group = {"GROUP": group_tokens(_VOCAB), "BIASES": MAX_LOGIT_BIAS}
    whole = {"TILE": _TILE, "GROUPS": _MOST_GROUPS, "BIASES": MAX_LOGIT_BIAS}
    found = [
        _variant("maxima", _maxima, tiled, group | {"TILE": _TILE}),
        _variant("whole", _whole, tiled | drawing, whole),
    ]
    for shares in (8, 64):
        chosen = group | {"GROUPS": _MOST_GROUPS, "SHARES": shares, "MOST": DEVICE_TOP_K}
        plain, counting = {"COUNT": False, "next_tokens": None}, {"COUNT": True}
        found.append(_variant(f"choose-of-{shares}", _choose, choosing, chosen | plain, _CHOOSING_WARPS))
        counted = choosing | {"next_tokens": "*i64"}
        found.append(_variant(f"choose-of-{shares}-and-count", _choose, counted, chosen | counting, _CHOOSING_WARPS))
    return tuple(found)


def _variant(
    name: str, kernel: object, signature: Mapping[str, str], constants: Mapping[str, object], warps: int = 4
) -> Variant:
    aligned = tuple(name for name, type_ in signature.items() if type_.startswith("*") or name in ("stride", "vocab"))
    return Variant(name, kernel, signature, constants, num_warps=warps, aligned=aligned, fp_fusion=False)


_VOCAB = 248_320
VARIANTS = _variants()
