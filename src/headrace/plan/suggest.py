"""What would fit instead: the settings nearest to those asked for, each tried by making its budget.

Changes are combined one, then two, then three at a time; the fewest that lead anywhere are suggested, and of one more those
that give more tokens or users. Shorter contexts and fewer users are as long and as many as fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from headrace.plan.dtypes import itemsize
from headrace.plan.fit import longest_context, most_users, outcome
from headrace.plan.memory_limit import memory_limit
from headrace.plan.planner import Plan, Request
from headrace.plan.published import FORMATS
from headrace.plan.speculation import DRAFT_SETTINGS

LEAST_CONTEXT = 1024
"""Tokens, or half of what is asked for: a shorter context is of no use instead of it."""
MOST_CHANGES = 3
MOST_SUGGESTIONS = 8
Remake = Callable[[Request], Plan]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """settings: what to give instead, by flag ("context", "kv-dtype"; "format" is the name's, behind the colon), None for what
    is to be left out.

    at_once: every user has `context` tokens; otherwise users share capacity_tokens, and none has more than `context`.
    """

    settings: Mapping[str, Any]
    context: int
    users: int
    at_once: bool
    capacity_tokens: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class _Change:
    """A different request. kind: only one of each is made at a time."""

    kind: str
    settings: Mapping[str, Any]
    apply: Callable[[Request], Request]


def suggestions(plan: Plan, remake: Remake) -> tuple[Suggestion, ...]:
    """For a plan that does not fit. remake: the plan of a changed request."""
    changes = [*_vision(plan), *_memory(plan), *_types(plan), *_drafts(plan), *_checkpoints(plan), *_formats(plan)]
    found: list[Suggestion] = []
    for count in range(1, MOST_CHANGES + 1):
        enough = bool(found)
        for each in (*_with_changes(plan, remake, changes, count), *_with_less(plan, remake, changes, count - 1)):
            if not any(_does_as_well(other, each) for other in found):
                found.append(each)
        if enough:
            break
    return tuple(found[:MOST_SUGGESTIONS])


def _does_as_well(other: Suggestion, one: Suggestion) -> bool:
    """Whether `other` changes nothing else and gives no less."""
    changed = other.settings.keys() - {"context", "users"}
    same = changed <= one.settings.keys() and all(other.settings[name] == one.settings[name] for name in changed)
    return same and other.context >= one.context and other.users >= one.users


def _asked(plan: Plan) -> tuple[int | None, int | None]:
    return plan.request.engine.context, plan.request.plan.users


def _with_changes(plan: Plan, remake: Remake, changes: list[_Change], count: int) -> Iterator[Suggestion]:
    """So many changes, with the context and the users as asked for."""
    for chosen in _choices(changes, count):
        yield from _tried(_changed(plan, remake, chosen), chosen, {})


def _with_less(plan: Plan, remake: Remake, changes: list[_Change], count: int) -> Iterator[Suggestion]:
    """So many changes, and a shorter context or fewer users."""
    context, users = _asked(plan)
    for chosen in _choices(changes, count):
        changed = _changed(plan, remake, chosen)
        least = min(LEAST_CONTEXT, (context or 0) // 2)
        if context and least <= (longest := longest_context(changed.limits, users or 1)) < context:
            yield from _tried(remake(_with(changed.request, longest, users)), chosen, {"context": longest})
        if (context or users) and (fewer := most_users(changed.limits, context or plan.case.config.page_tokens)):
            if users is None or fewer < users:
                yield from _tried(remake(_with(changed.request, context, fewer)), chosen, {"users": fewer})


def _with(request: Request, context: int | None, users: int | None) -> Request:
    return replace(request, engine=replace(request.engine, context=context), plan=replace(request.plan, users=users))


def _choices(changes: list[_Change], count: int) -> Iterator[tuple[_Change, ...]]:
    for chosen in combinations(changes, count):
        if len({change.kind for change in chosen}) == count:
            yield chosen


def _changed(plan: Plan, remake: Remake, chosen: tuple[_Change, ...]) -> Plan:
    request = plan.request
    for change in chosen:
        request = change.apply(request)
    return remake(request) if chosen else plan


def _tried(plan: Plan, chosen: tuple[_Change, ...], less: Mapping[str, int]) -> Iterator[Suggestion]:
    """The plan of a request that was changed so, if it fits."""
    found = outcome(plan.case, *_asked(plan))
    if found.fits:
        settings = {name: value for change in chosen for name, value in change.settings.items()} | dict(less)
        total_bytes = sum(budget.total_bytes for budget in found.budgets)
        yield Suggestion(settings, found.context, found.users, found.at_once, found.capacity_tokens, total_bytes)


def _memory(plan: Plan) -> Iterator[_Change]:
    """A cache of what there is room for, instead of a size; as much memory as usual, where less or too much is asked for."""
    engine = plan.request.engine
    if engine.cache_bytes is not None:
        yield _engine("memory", "cache-bytes", None)
    if engine.memory_bytes is not None:
        stages = plan.case.stages
        usual = min(memory_limit(stage.hardware, replace(engine, memory_bytes=None))[0] or 0 for stage in stages)
        if engine.memory_bytes < usual or engine.memory_bytes > min(stage.hardware.free_bytes for stage in stages):
            yield _engine("memory", "memory-bytes", usual)


def _types(plan: Plan) -> Iterator[_Change]:
    if itemsize(plan.dtypes.kv) > 1:
        for name in ("fp8", "int8"):
            yield _engine("kv", "kv-dtype", name)
    if itemsize(plan.dtypes.state) > 2:
        yield _engine("state", "state-dtype", "fp16")


def _drafts(plan: Plan) -> Iterator[_Change]:
    """Fewer drafts, the checkpoint's own head instead of a drafter, none: of a drafter that was asked for."""
    method = plan.drafter.method
    if method == "off" or plan.request.decides:
        return
    if plan.drafter.drafts > 1 and plan.request.engine.verify_tokens is None:
        yield _engine("drafts", "draft-tokens", 1)
    if method == "dflash" and plan.model.weight_map.kept:
        yield _instead(plan, "mtp")
    yield _instead(plan, "off")


def _instead(plan: Plan, method: str) -> _Change:
    """Another drafter. What is for the one that was asked for is left out: its value is None."""
    without = {name: None for name in ("drafter", *DRAFT_SETTINGS) if getattr(plan.request.engine, name) is not None}
    settings = {"speculate": method, **{name.replace("_", "-"): None for name in without}}
    return _Change("drafts", settings, lambda request: replace(
        request, engine=replace(request.engine, speculate=method, **without)  # type: ignore[arg-type]
    ))


def _vision(plan: Plan) -> Iterator[_Change]:
    """Without the tower that is asked for."""
    if plan.request.plan.vision == "on":
        settings = {"vision": "off"}
        yield _Change("vision", settings, lambda request: replace(request, plan=replace(request.plan, vision="off")))


def _checkpoints(plan: Plan) -> Iterator[_Change]:
    if plan.request.engine.prefix_cache == "on" and plan.request.engine.gpu_checkpoint_bytes:
        yield _engine("checkpoints", "gpu-checkpoint-bytes", 0)


def _formats(plan: Plan) -> Iterator[_Change]:
    """Published formats of fewer bytes, of a model that is declared in them."""
    if plan.request.format in (None, "w4a16", "nvfp4") or plan.request.format not in FORMATS:
        return
    for name in ("fp8", "nvfp4", "w4a16"):
        if name != plan.request.format:
            yield _format(name)


def _format(name: str) -> _Change:
    return _Change("format", {"format": name}, lambda request: replace(request, format=name))


def _engine(kind: str, flag: str, value: Any) -> _Change:
    field = flag.replace("-", "_")
    return _Change(kind, {flag: value}, lambda request: replace(request, engine=replace(request.engine, **{field: value})))
