"""Searching for the most that fits, and that more never fits where less does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import EngineConfig, PlanConfig
from headrace.plan.cards import CARDS, Card, card, card_of_driver
from headrace.plan.fit import longest_context, most_users, outcome
from headrace.plan.planner import Plan, Request, make_plan
from headrace.plan.published import published_model
from headrace.plan.search import most
from headrace.plan.speculation import drafter_extras, drafter_for

MODEL = published_model("qwen3.8-27b:w4a16")
GEFORCE = ("rtx3090", "rtx3090ti", "rtx4080", "rtx4090", "rtx5070ti", "rtx5080", "rtx5090")
LARGE = {"a100-40gb": 1024, "a100-80gb": 1024, "h100": 2048, "h200": 2048, "b200": 4096}
PRODUCTS_A_CLOCK = {name: LARGE.get(name, 256 if name in GEFORCE else 512) for name in CARDS}


def plan(*cards: Card, engine: EngineConfig | None = None, **settings: object) -> Plan:
    request = Request("w4a16", engine or EngineConfig(device="cuda"), PlanConfig(**settings))  # type: ignore[arg-type]
    return make_plan(request, cards, lambda format: MODEL)


@given(st.integers(0, 300), st.integers(0, 300))
def test_the_most_is_found(limit: int, largest: int) -> None:
    assert most(lambda count: count <= largest, limit) == min(limit, largest)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.integers(20, 60), st.integers(1, 40), st.sampled_from(["off", "lookup", "mtp", "dflash"]), st.integers(1, 2))
def test_the_search_ends_where_fitting_ends(gib: int, users: int, method: str, number: int) -> None:
    cards = [replace(CARDS["rtx3090"], memory_bytes=gib << 30)] * number
    case = plan(*cards, engine=EngineConfig(device="cuda", speculate=method)).case
    longest = longest_context(case, users)
    if longest:
        assert outcome(case, longest, users).fits
        # shorter contexts and fewer users too
        assert outcome(case, max(2, longest // 2), users).fits and outcome(case, longest, max(1, users // 2)).fits
    if longest < case.max_context:
        assert not outcome(case, longest + 16, users).fits
    among = most_users(case, 4096)
    assert among is not None
    assert not among or outcome(case, 4096, among).fits
    assert not outcome(case, 4096, among + 1).fits


def test_what_is_planned_is_what_the_engine_would_allocate() -> None:
    """For a card with nothing beside, the plan's lines are make_budget's."""
    from headrace.plan.budget import make_budget

    for speculate, drafts in (("off", 0), ("lookup", 7)):
        settings = EngineConfig(device="cuda", kv_dtype="fp8", speculate=speculate)
        planned = plan(CARDS["rtx4090"], engine=settings, vision="off")
        (budget,) = outcome(planned.case, None, None).budgets
        hardware = planned.case.stages[0].hardware
        drafter = drafter_for(MODEL, settings, planned.dtypes)
        extras = drafter_extras(MODEL, settings, planned.dtypes, drafter)
        assert drafter.drafts == drafts
        assert budget == make_budget(MODEL.spec, MODEL.weight_map, hardware, settings, planned.dtypes, drafts, extras)


def test_lookup_behind_a_models_drafts_is_planned() -> None:
    alone, extended = (
        plan(CARDS["h200"], engine=EngineConfig(device="cuda", speculate="mtp", draft_tokens=4, context=4096, verify_tokens=n))
        for n in (None, 9)
    )
    assert (alone.drafter.drafts, alone.drafter.extended) == (4, 0)
    assert (extended.drafter.drafts, extended.drafter.extended) == (9, 5)
    (found,) = outcome(extended.case, None, 3).budgets
    lines = {line.name: line for line in found.lines}
    assert lines["draft inputs"].bytes == 4 * (4 * 4096 + 8) and lines["draft inputs"].why.endswith("to look drafts up in")
    assert found.layout.drafts == 9
    assert "draft inputs" not in {line.name for line in outcome(alone.case, None, 3).budgets[0].lines}


def test_cards_are_called_as_people_and_drivers_call_them() -> None:
    assert card("RTX 3090") is card("rtx3090") is CARDS["rtx3090"]
    found = card_of_driver("NVIDIA GeForce RTX 5090", 32_000_000_000, 120)
    assert (found.memory_bytes, found.bytes_per_s) == (32_000_000_000, CARDS["rtx5090"].bytes_per_s)
    assert (found.name, found.kept_bytes) == ("NVIDIA GeForce RTX 5090", CARDS["rtx5090"].kept_bytes)
    assert card_of_driver("NVIDIA Something", 8, 99) == Card("NVIDIA Something", 8, 99)


@pytest.mark.parametrize("each", CARDS.values(), ids=lambda each: each.name)
def test_cards_are_plausible(each: Card) -> None:
    """Not a typing error by a factor: bytes a second pass over the memory 10 to 60 times, 50 to 400 operations a byte."""
    assert each.bytes_per_s and each.flops_per_s
    assert 10 < each.bytes_per_s / each.memory_bytes < 70
    assert 50 < each.flops_per_s / each.bytes_per_s < 450
    assert 2**28 < each.kept_bytes < 5 * 2**30 and each.kept_bytes < each.memory_bytes // 20
    assert each.capability in (80, 86, 89, 90, 100, 120)
    # The rate is what a boost clock's multiply-adds give: 256 a processor on GeForce, twice that on workstations, more beyond.
    clock_hz = each.flops_per_s / (2 * each.processors * PRODUCTS_A_CLOCK[each.name])
    assert 1.4e9 < clock_hz < 2.65e9
