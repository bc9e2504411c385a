"""Whatever is asked for that does not fit: something that does is offered, or it is said that nothing fits on the card."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from functools import cache
from random import Random
from typing import Any

import pytest
from tests.plan.test_reports import told

from headrace.config import EngineConfig, PlanConfig
from headrace.errors import HeadraceError
from headrace.plan.cards import CARDS
from headrace.plan.changes import KV_DTYPE, SMALL_CHUNK_TOKENS
from headrace.plan.checkpoint import Model
from headrace.plan.engine_settings import MOST_SEQS
from headrace.plan.fit import USEFUL_TOKENS, outcome
from headrace.plan.planner import Plan, Request, cards_for, make_plan
from headrace.plan.published import FORMATS, published_model
from headrace.plan.shapes import SHAPES
from headrace.plan.suggest import Instead, instead

pytestmark = pytest.mark.usefixtures("only_own_garbage")

MOST_S = 1.5
OPTIONS: dict[str, list[Any]] = {  # of a value there are as many as it is likely
    "context": [None, None, 2, 700, 8192, 65_536, 262_144],
    "users": [None, None, 1, 3, 16, 200, 10_000, MOST_SEQS],
    "chunk_tokens": [None] * 6 + [64, 8192, 10_000_000],
    "page_tokens": [16] * 6 + [64, 4096, 200_000],
    "dtype": ["auto"] * 6 + ["float32", "float64", "float16"],
    "kv_dtype": ["auto", "auto", "bf16", "fp8", "int8"],
    "state_dtype": ["auto", "auto", "fp16", "fp32"],
    "memory_bytes": [None] * 12 + [10**6, 20 * 10**9, 10**12],
    "memory_fraction": [None] * 12 + [0.1, 0.5, 1.0],
    "cache_bytes": [None] * 12 + [10**6, 3 * 10**9, 10**12],
    "prefix_cache": ["on", "on", "off"],
    "gpu_checkpoint_bytes": [None] * 6 + [0, 10**9, 10**11],
    "speculate": ["auto", "auto", "mtp", "dflash", "lookup", "off"],
    "draft_tokens": [None, None, 2, 7],
    "graphs": ["auto", "auto", "off"],
    "desktop_bytes": [0] * 6 + [10**9, 11 * 10**9],
    "kv_scales": ["token-head", "token-head", "one"],
    "vision": ["auto", "auto", "on", "off"],
}
IN_PLAN = {field.name for field in fields(PlanConfig)}


@cache
def model(name: str, format: str | None) -> Model:
    return published_model(f"{name}:{format}")


def remake(name: str) -> Any:
    return lambda request: make_plan(request, cards_for(request.plan), lambda format: model(name, format))


def drawn(random: Random) -> tuple[str, Request]:
    """A model, and whatever somebody may ask for."""
    name = random.choice([*SHAPES, "qwen3.8-27b"])
    asked = {option: random.choice(values) for option, values in OPTIONS.items()}
    gpu = random.choice(sorted(CARDS)) if random.random() < 0.9 else random.choice(["rtx3090,rtx3090", "rtx4090,rtx5090,l4"])
    plan = PlanConfig(gpu=gpu, **{option: value for option, value in asked.items() if option in IN_PLAN})
    engine = EngineConfig(device="cuda", **{option: value for option, value in asked.items() if option not in IN_PLAN})
    return name, Request(random.choice(FORMATS), engine, plan)


def unfit(random: Random) -> tuple[str, Request, Plan]:
    """One that can be asked for and does not fit."""
    while True:
        name, request = drawn(random)
        try:
            plan = remake(name)(request)
        except HeadraceError:
            continue
        if not outcome(plan.case, request.engine.context, request.plan.users).fits:
            return name, request, plan


def check(name: str, request: Request, plan: Plan) -> Instead:
    began_s = time.process_time()
    found = instead(plan, remake(name))
    assert time.process_time() - began_s < MOST_S, request
    for suggestion in found.suggestions:
        again = told(request, suggestion)
        other = outcome(remake(name)(again).case, again.engine.context, again.plan.users)
        assert other.fits, (request, suggestion)
        assert (other.context, other.users, other.capacity_tokens, other.total_bytes) == (
            suggestion.context, suggestion.users, suggestion.capacity_tokens, suggestion.total_bytes
        )
    on_it = [one for one in found.suggestions if "gpu" not in one.settings]
    assert bool(on_it) == (found.least is None), request
    if found.least:
        assert not fits_at_all(name, request)
    return found


def fits_at_all(name: str, request: Request) -> bool:
    """One user with a page of the smallest types and weights, in the smallest steps, and nothing beside."""
    heads = [format for format in FORMATS if format.startswith((request.format or "", "w4a16")) and format.endswith("-head8")]
    engine = EngineConfig(
        device="cuda", kv_dtype="int8" if request.plan.kv_scales == "token-head" else request.engine.kv_dtype,
        speculate="off", prefix_cache="off", chunk_tokens=SMALL_CHUNK_TOKENS, graphs="off",
    )
    plan = PlanConfig(gpu=request.plan.gpu, users=1, vision="off", kv_scales=request.plan.kv_scales,
                      desktop_bytes=request.plan.desktop_bytes)
    return any(
        outcome(remake(name)(Request(format, engine, plan)).case, None, 1).fits for format in heads
    )


@pytest.mark.parametrize("seed", range(40))
def test_something_that_fits_is_offered(seed: int) -> None:
    check(*unfit(Random(seed)))


@pytest.mark.long
def test_something_that_fits_is_offered_whatever_is_asked() -> None:
    random = Random(7)
    for _ in range(4000):
        check(*unfit(random))


def asked(format: str, gpu: str, users: int | None = None, **engine: Any) -> Instead:
    request = Request(format, EngineConfig(device="cuda", **engine), PlanConfig(gpu=gpu, users=users))
    return check("qwen3.8-27b", request, remake("qwen3.8-27b")(request))


def test_fewer_users_are_offered_without_a_context() -> None:
    """So many that each has a context of use in what they share."""
    first = asked("nvfp4", "rtx5090", 200).suggestions[0]
    assert first.settings.keys() == {"users"} and 1 < first.users < 200
    assert first.capacity_tokens >= first.users * USEFUL_TOKENS


def test_chunks_and_pages_that_are_too_large_are_left_out() -> None:
    assert asked("nvfp4", "rtx5090", chunk_tokens=10_000_000).suggestions[0].settings == {"chunk-tokens": None}
    assert asked("w4a16", "rtx3090", page_tokens=262_144).suggestions[0].settings == {"page-tokens": 16}


def test_both_are_less_where_neither_is_enough() -> None:
    """Some users with a shorter context, and one alone with the longest."""
    found = asked("w4a16", "rtx3090", 200, context=262_144).suggestions
    some, alone = (one for one in found if one.settings.keys() == {"context", "users"})
    assert 1 == alone.users < some.users < 200 and some.context < alone.context < 262_144


def test_what_takes_more_changes_than_three_is_found() -> None:
    """And none of them could be left out."""
    settings = {"chunk_tokens": 10_000_000, "page_tokens": 262_144, "state_dtype": "fp32", "memory_fraction": 0.1}
    request = Request("w4a16", EngineConfig(device="cuda", speculate="mtp", **settings), PlanConfig(gpu="rtx3090", vision="on"))
    plan = remake("qwen3.8-27b")(request)
    (found,) = (one for one in check("qwen3.8-27b", request, plan).suggestions if "gpu" not in one.settings)
    assert {"chunk-tokens", "page-tokens", "memory-fraction"} <= found.settings.keys()
    for name in found.settings:
        kept = replace(found, settings={flag: value for flag, value in found.settings.items() if flag != name})
        again = told(request, kept)
        other = outcome(remake("qwen3.8-27b")(again).case, again.engine.context, again.plan.users)
        assert not other.fits or other.context < USEFUL_TOKENS, name


def test_where_nothing_fits_it_is_said_and_a_card_named() -> None:
    found = asked("w4a16", "rtx4080")
    assert found.least and found.least.settings["kv-dtype"] == KV_DTYPE
    (larger,) = found.suggestions
    assert larger.settings == {"gpu": "l4"}
    assert found.least.total_bytes > CARDS["rtx4080"].memory_bytes - CARDS["rtx4080"].kept_bytes


def test_the_smallest_card_is_named() -> None:
    larger = asked("bf16", "rtx3090", context=8192).suggestions[-1]
    (name,) = larger.settings.values()
    given = {card.name: card.memory_bytes - card.kept_bytes for card in CARDS.values()}
    for other in CARDS.values():
        if given["rtx3090"] < given[other.name] < given[name]:
            request = Request("bf16", EngineConfig(device="cuda", context=8192), PlanConfig(gpu=other.name))
            assert not outcome(remake("qwen3.8-27b")(request).case, 8192, None).fits
