"""Reports of plans for every card, format and setting: lines add up, limits are limits, every suggestion fits as it is told."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import EngineConfig, PlanConfig
from headrace.plan.cards import CARDS
from headrace.plan.checkpoint import Model
from headrace.plan.fit import outcome
from headrace.plan.planner import Plan, Request, cards_for, make_plan
from headrace.plan.published import published_model
from headrace.plan.report import Report, make_report
from headrace.plan.suggest import Suggestion

pytestmark = pytest.mark.usefixtures("only_own_garbage")

QUICK_S = 2.0
REQUESTS = st.builds(
    lambda format, engine, plan: Request(format, engine, plan),
    st.sampled_from(["w4a16", "w4a16-head8", "fp8", "nvfp4", "bf16"]),
    st.builds(
        EngineConfig, device=st.just("cuda"), context=st.sampled_from([None, 2048, 12_345, 32_768, 131_072, 262_144]),
        kv_dtype=st.sampled_from(["auto", "fp8", "int8"]), page_tokens=st.sampled_from([16, 16, 16, 2048]),
        speculate=st.sampled_from(["auto", "mtp", "dflash", "lookup", "off"]), draft_tokens=st.sampled_from([None, 2, 7]),
    ),
    st.builds(
        PlanConfig, gpu=st.sampled_from(sorted(CARDS)), users=st.sampled_from([None, 1, 2, 8, 64, 300]),
        vision=st.sampled_from(["auto", "off"]),
    ),
)


@cache
def model(format: str | None) -> Model:
    return published_model(f"qwen3.8-27b:{format}")


def made(request: Request) -> Plan:
    return make_plan(request, cards_for(request.plan), model)


def told(request: Request, suggestion: Suggestion) -> Request:
    """What somebody asks for who takes a suggestion."""
    for flag, value in suggestion.settings.items():
        name, change = flag.replace("-", "_"), {flag.replace("-", "_"): value}
        if name == "format":
            request = replace(request, format=value)
        elif name in ("gpu", "users", "vision"):
            request = replace(request, plan=replace(request.plan, **change))
        else:
            request = replace(request, engine=replace(request.engine, **change))
    return request


def check_limits(request: Request, report: Report) -> None:
    context, users = request.engine.context, request.plan.users
    assert report.total_bytes == sum(line.bytes for line in report.lines) and all(line.bytes > 0 for line in report.lines)
    assert report.vram_bytes is not None and report.fits == (report.total_bytes <= report.vram_bytes)
    assert not report.fits or report.context <= report.capacity_tokens
    if context and users:
        assert report.max_users is not None
        assert report.fits == (report.max_context >= context) == (report.max_users >= users)


def check(request: Request) -> None:
    began_s = time.process_time()
    report = make_report(made(request), made)
    assert time.process_time() - began_s < QUICK_S
    check_limits(request, report)
    for suggestion in report.suggestions:
        again = told(request, suggestion)
        found = outcome(made(again).case, again.engine.context, again.plan.users)
        assert found.fits, suggestion
        assert (found.context, found.users, found.capacity_tokens) == (
            suggestion.context, suggestion.users, suggestion.capacity_tokens
        )
        assert suggestion.context >= min(1024, (request.engine.context or 1024) // 2) or not request.engine.context


def test_users_without_a_page_each_are_told_what_they_need() -> None:
    """And not what the engine would start with, which fits."""
    request = Request("w4a16", EngineConfig(device="cuda"), PlanConfig(gpu="l40s", users=330))
    report = make_report(made(request), made)
    check_limits(request, report)
    assert not report.fits and "are not one for each of 330 users" in report.why
    assert (report.users, report.context) == (330, 1024)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(REQUESTS)
def test_reports_are_consistent(request: Any) -> None:
    check(request)


@pytest.mark.long
@settings(deadline=None, max_examples=400)
@given(REQUESTS)
def test_many_reports_are_consistent(request: Any) -> None:
    check(request)
