"""A model over several cards: runs of layers, one for each card in order, cut where the fullest card is least full.

That is pipeline parallelism's arithmetic: the first card has the embedding and the vision tower, the last the head, the sampler
and the drafter; each has the states and the pages of its own layers, with the same page ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from headrace.config import Dtype
from headrace.errors import ConfigError
from headrace.hardware import Hardware
from headrace.models.spec import ModelSpec, Weight, WeightMap
from headrace.plan.dtypes import Dtypes
from headrace.plan.extras import BudgetLine, Extras
from headrace.plan.weight_memory import weight_bytes
from headrace.quantities import counted


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
        layers = counted(len(spec.layers), "layer")
        raise ConfigError(f"--gpu names {counted(len(cards), 'card')}, and the model has {layers} to spread")
    if len(cards) == 1:
        return (Stage(cards[0], spec, weights, replace(last, lines=(*first, *last.lines))),)
    ends = (sum(line.bytes for line in first), sum(line.bytes for line in last.lines))
    sizes = _bytes_of_layers(weights, len(spec.layers), dtypes.compute, ends)
    cuts = _cuts(sizes, [card.memory_bytes for card in cards])
    runs = _weights_of_runs(weights, tuple(cuts), tied=spec.tied)
    stages = []
    for index, card in enumerate(cards):
        begin, end = cuts[index], cuts[index + 1]
        head, tail = index == 0, index == len(cards) - 1
        extras = last if tail else Extras(one_scale=last.one_scale)
        extras = replace(extras, lines=(*(first if head else ()), *extras.lines))
        drafter = spec.drafter if tail else None
        part = replace(spec, layers=spec.layers[begin:end], vocab_size=spec.vocab_size if tail else 0, drafter=drafter)
        stages.append(Stage(card, part, runs[index], extras))
    return tuple(stages)


@lru_cache(maxsize=32)
def _weights_of_runs(weights: WeightMap, cuts: tuple[int, ...], *, tied: bool) -> tuple[WeightMap, ...]:
    """Which tensors each card has; a tied embedding is on the last one too."""
    last = len(cuts) - 2
    runs: list[list[Weight]] = [[] for _ in range(last + 1)]
    for weight in weights.weights:
        layer = _layer_of(weight)
        if layer is not None:
            runs[next(index for index in range(last + 1) if layer < cuts[index + 1])].append(weight)
            continue
        embedding = weight.target.startswith("embedding.")
        if embedding:
            runs[0].append(weight)
        if not embedding or (tied and last):
            runs[last].append(weight)
    return tuple(replace(weights, weights=tuple(run)) for run in runs)


def _bytes_of_layers(weights: WeightMap, layers: int, compute: Dtype, ends: tuple[int, int]) -> list[int]:
    """What each layer takes; the first and the last with what is before and behind them."""
    sizes = list(_stored_bytes(weights, layers, compute))
    sizes[0] += ends[0]
    sizes[-1] += ends[1]
    return sizes


@lru_cache(maxsize=32)
def _stored_bytes(weights: WeightMap, layers: int, compute: Dtype) -> tuple[int, ...]:
    """Of each layer's weights."""
    members: list[list[Weight]] = [[] for _ in range(layers)]
    for weight in weights.weights:
        layer = _layer_of(weight)
        ends = 0 if weight.target.startswith("embedding.") else -1
        members[ends if layer is None else layer].append(weight)
    return tuple(weight_bytes(replace(weights, weights=tuple(each)), compute) for each in members)


def _layer_of(weight: Weight) -> int | None:
    kind, _, rest = weight.target.partition(".")
    return int(rest.partition(".")[0]) if kind == "layers" else None


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
