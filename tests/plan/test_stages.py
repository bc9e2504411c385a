"""A model cut into runs of layers: nothing lost, nothing twice, and no better cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cache.layout import state_elements
from headrace.errors import ConfigError
from headrace.hardware import Hardware
from headrace.models.spec import DrafterCache, DrafterState
from headrace.plan.dtypes import Dtypes
from headrace.plan.extras import BudgetLine, Extras
from headrace.plan.published import published_model
from headrace.plan.stages import _cuts, split
from headrace.plan.weight_memory import weight_bytes

MODEL = published_model("qwen3.8-27b:w4a16")
SMALL = published_model("smollm2-135m")
DTYPES = Dtypes("bfloat16", "bfloat16", "float16")


def cards(*memories: int) -> list[Hardware]:
    return [Hardware("cuda", f"card {index}", size, size, elsewhere=True) for index, size in enumerate(memories)]


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.integers(0, 50), min_size=4, max_size=9), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_no_other_cut_leaves_the_fullest_card_emptier(sizes: list[int], memories: list[int]) -> None:
    def fullest(cuts: list[int]) -> float:
        return max(sum(sizes[a:b]) / memory for a, b, memory in zip(cuts, cuts[1:], memories, strict=False))

    inner = combinations(range(1, len(sizes)), len(memories) - 1)
    found = _cuts(sizes, memories)
    assert found == sorted(set(found)) and found[0] == 0 and found[-1] == len(sizes) and len(found) == len(memories) + 1
    assert fullest(found) == min(fullest([0, *middle, len(sizes)]) for middle in inner)


@pytest.mark.parametrize("memories", [(24,), (24, 24), (24, 32, 24), (24, 24, 24, 24, 24, 24)])
def test_the_parts_are_the_whole(memories: tuple[int, ...]) -> None:
    last = Extras(lines=(BudgetLine("weights mtp", 7, "x"),), slot_bytes=5, slot_why="x", one_scale=True)
    kept = DrafterCache(states=(DrafterState((3,)),))
    spec, tower = replace(MODEL.spec, drafter=kept), (BudgetLine("weights vision", 9, "x"),)
    stages = split(spec, MODEL.weight_map, cards(*memories), DTYPES, tower, last)
    assert tuple(layer for stage in stages for layer in stage.spec.layers) == MODEL.spec.layers
    assert sum(weight_bytes(stage.weights, "bfloat16") for stage in stages) == weight_bytes(MODEL.weight_map, "bfloat16")
    assert sum(state_elements(stage.spec)[0] for stage in stages) == state_elements(MODEL.spec)[0]
    assert [line.name for line in stages[0].extras.lines if "vision" in line.name] == ["weights vision"]
    assert stages[-1].spec.drafter == kept and stages[-1].extras.slot_bytes == 5
    assert all(stage.spec.drafter is None and not stage.extras.slot_bytes for stage in stages[:-1])
    assert all(stage.extras.one_scale for stage in stages)


def test_a_tied_embedding_is_counted_on_both_ends() -> None:
    first, last = split(SMALL.spec, SMALL.weight_map, cards(24, 24), DTYPES, (), Extras())
    embedding = 49_152 * 576 * 2
    both = weight_bytes(first.weights, "bfloat16") + weight_bytes(last.weights, "bfloat16")
    assert both == weight_bytes(SMALL.weight_map, "bfloat16") + embedding


def test_more_cards_than_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="names 31 cards, and the model has 30 layers"):
        split(SMALL.spec, SMALL.weight_map, cards(*[24] * 31), DTYPES, (), Extras())
