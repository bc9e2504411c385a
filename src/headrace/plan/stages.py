"""A model over several cards: runs of layers, one for each card in order, cut where the fullest card is least full.

That is pipeline parallelism's arithmetic: the first card has the embedding and the vision tower, the last the head, the sampler
and the drafter; each has the states and the pages of its own layers, with the same page ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.errors import ConfigError
from headrace.hardware import Hardware
from headrace.models.spec import ModelSpec, Weight, WeightMap
from headrace.plan.dtypes import Dtypes
from headrace.plan.extras import BudgetLine, Extras
from headrace.plan.weight_memory import weight_bytes


@dataclass(frozen=True, slots=True)
class Stage:
    """What one card has. Its spec has these layers only, and a vocabulary only where logits are computed."""

    hardware: Hardware
    spec: ModelSpec
    weights: WeightMap
    extras: Extras


def split(
    spec: ModelSpec, weights: WeightMap, cards: Sequence[Hardware], dtypes: Dtypes, first: Sequence[BudgetLine], last: Extras
) -> tuple[Stage, ...]:
    """first: lines of the first card. last: the extras of the last one, of which `cached` and `one_scale` are every card's."""
    if len(cards) > len(spec.layers):
        raise ConfigError(f"--gpu names {len(cards)} cards, and the model has {len(spec.layers)} layers to spread")
    if len(cards) == 1:
        return (Stage(cards[0], spec, weights, replace(last, lines=(*first, *last.lines))),)
    ends = (sum(line.bytes for line in first), sum(line.bytes for line in last.lines))
    cuts = _cuts(_bytes_of_layers(spec, weights, dtypes, ends), [card.memory_bytes for card in cards])
    stages = []
    for index, card in enumerate(cards):
        begin, end = cuts[index], cuts[index + 1]
        head, tail = index == 0, index == len(cards) - 1
        extras = last if tail else Extras(one_scale=last.one_scale)
        extras = replace(extras, lines=(*(first if head else ()), *extras.lines))
        drafter = spec.drafter if tail else None
        part = replace(spec, layers=spec.layers[begin:end], vocab_size=spec.vocab_size if tail else 0, drafter=drafter)
        mine = tuple(w for w in weights.weights if _stage_of(w, spec, cuts, tail=tail) == index)
        stages.append(Stage(card, part, replace(weights, weights=mine), extras))
    return tuple(stages)


def _stage_of(weight: Weight, spec: ModelSpec, cuts: Sequence[int], *, tail: bool) -> int:
    """Which card has a tensor; a tied embedding is on the last one too."""
    kind, _, rest = weight.target.partition(".")
    if kind == "layers":
        layer = int(rest.partition(".")[0])
        return next(index for index in range(len(cuts) - 1) if layer < cuts[index + 1])
    last = len(cuts) - 2
    return last if kind != "embedding" or (spec.tied and tail) else 0


def _bytes_of_layers(spec: ModelSpec, weights: WeightMap, dtypes: Dtypes, ends: tuple[int, int]) -> list[int]:
    """What each layer takes; the first and the last with what is before and behind them."""
    members: dict[int, list[Weight]] = {index: [] for index in range(len(spec.layers))}
    for weight in weights.weights:
        kind, _, rest = weight.target.partition(".")
        before = 0 if kind == "embedding" else len(spec.layers) - 1
        members[int(rest.partition(".")[0]) if kind == "layers" else before].append(weight)
    sizes = [weight_bytes(replace(weights, weights=tuple(each)), dtypes.compute) for each in members.values()]
    sizes[0] += ends[0]
    sizes[-1] += ends[1]
    return sizes


def _cuts(sizes: Sequence[int], memories: Sequence[int]) -> list[int]:
    """Where runs of layers begin, and the end: of all ways the one whose fullest card is least full for its memory."""
    sums = [0]
    for size in sizes:
        sums.append(sums[-1] + size)
    layers = len(sizes)
    best = {end: (sums[end] / memories[0], [0, end]) for end in range(1, layers + 1)}
    for index, memory in enumerate(memories[1:], 1):
        best = {
            end: min(
                (max(best[cut][0], (sums[end] - sums[cut]) / memory), [*best[cut][1], end]) for cut in range(index, end)
            )
            for end in range(index + 1, layers + 1)
        }
    return best[layers][1]
