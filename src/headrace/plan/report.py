"""What a plan says: every line of every card's memory and why, what is the most that fits, and what would fit instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.cache.layout import cache_groups
from headrace.hardware import ram_bytes
from headrace.plan.dtypes import token_bytes
from headrace.plan.extras import BudgetLine, Extras
from headrace.plan.fit import NO_LIMIT_BYTES, Outcome, limit_bytes, longest_context, most_users, outcome
from headrace.plan.host_memory import host_note
from headrace.plan.memory_limit import reserve_why
from headrace.plan.planner import Plan, tower_bytes
from headrace.plan.predict import Predicted, predict
from headrace.plan.suggest import Instead, Remake, Suggestion, instead
from headrace.quantities import counted, exact_size


@dataclass(frozen=True, slots=True)
class Report:
    """lines: of all cards, in order; engine_bytes: without those that are left to others. vram_bytes: None where no card is
    named. context, users: what the lines are for.

    kv_bytes_per_token and state_bytes_per_sequence: the target's alone. max_context: of max_context_users, as many as asked
    for, one if not given. max_users: with this context, None where nothing limits them. why: what is in the way if it does not
    fit. least: where nothing fits, what would need least.
    """

    fits: bool
    why: str
    cards: tuple[str, ...]
    total_bytes: int
    engine_bytes: int
    vram_bytes: int | None
    lines: tuple[BudgetLine, ...]
    context: int
    users: int
    kv_bytes_per_token: int
    state_bytes_per_sequence: int
    draft_bytes_per_token: int
    draft_bytes_per_sequence: int
    checkpoint_bytes: int
    capacity_tokens: int
    max_context: int
    max_context_users: int
    max_users: int | None
    predicted: Predicted | None
    suggestions: tuple[Suggestion, ...]
    least: Suggestion | None
    notes: tuple[str, ...]


def make_report(plan: Plan, remake: Remake) -> Report:
    """Everything about a plan. remake: the plan of a changed request, for suggestions."""
    settings = plan.request.plan
    found = outcome(plan.case, plan.request.engine.context, settings.users)
    lines = tuple(_lines(plan, found))
    named = all(card.memory_bytes < NO_LIMIT_BYTES for card in plan.cards)
    extras = Extras(one_scale=settings.kv_scales == "one")
    groups = extras.all_groups(plan.model.spec)[: len(cache_groups(plan.model.spec))]
    drafted = plan.drafter
    other = Instead() if found.fits else instead(plan, remake)
    return Report(
        fits=found.fits,
        why=found.why,
        cards=tuple(card.name for card in plan.cards),
        total_bytes=sum(line.bytes for line in lines),
        engine_bytes=found.total_bytes,
        vram_bytes=sum(card.memory_bytes for card in plan.cards) if named else None,
        lines=lines,
        context=found.context,
        users=found.users,
        kv_bytes_per_token=sum(token_bytes(group, plan.dtypes.kv) for group in groups),
        state_bytes_per_sequence=plan.state_bytes,
        draft_bytes_per_token=drafted.bytes_per_token(plan.dtypes),
        draft_bytes_per_sequence=drafted.bytes_per_sequence(plan.dtypes),
        checkpoint_bytes=plan.checkpoint_bytes,
        capacity_tokens=_capacity(plan, found),
        max_context=longest_context(plan.limits, settings.users or 1),
        max_context_users=settings.users or 1,
        max_users=most_users(plan.limits, found.context),
        predicted=predict(plan, found.context, found.capacity_tokens) if found.fits else None,
        suggestions=other.suggestions,
        least=other.least,
        notes=tuple(_notes(plan, found)),
    )


def as_json(report: Report) -> dict[str, Any]:
    """The report as plain values."""
    return dataclasses.asdict(report)


def _lines(plan: Plan, found: Outcome) -> Iterator[BudgetLine]:
    """The engine's, and what is left to others on each card."""
    several = len(plan.cards) > 1
    for index, (stage, budget) in enumerate(zip(plan.case.stages, found.budgets, strict=True)):
        place = f" [{index}: {stage.hardware.name}]" if several else ""
        for line in (*budget.lines, *_left_to_others(plan, index)):
            yield dataclasses.replace(line, name=line.name + place)


def _left_to_others(plan: Plan, index: int) -> Iterator[BudgetLine]:
    stage, config = plan.case.stages[index], plan.case.config
    hardware = stage.hardware
    if hardware.memory_bytes >= NO_LIMIT_BYTES:
        return
    if kept := plan.cards[index].kept_bytes:
        yield BudgetLine("driver", kept, "kept by the card's driver: nvidia-smi counts it, and CUDA does not have it to give")
    if held := hardware.memory_bytes - hardware.free_bytes:
        yield BudgetLine("desktop", held, "held by a desktop and other programs, as given")
    if left := hardware.free_bytes - limit_bytes(stage, config):
        yield BudgetLine("reserve", left, reserve_why(config))


def _capacity(plan: Plan, found: Outcome) -> int:
    """Tokens that the planned pages hold; of a plan that does not fit, those that there is room for."""
    if found.fits:
        return found.capacity_tokens
    shared = outcome(plan.case, None, plan.request.plan.users)
    return shared.capacity_tokens if shared.fits else 0


def _notes(plan: Plan, found: Outcome) -> Iterator[str]:
    settings, format = plan.request.plan, plan.request.format
    yield from plan.dtypes.notes
    if not found.fits and found.at_once:
        yield f"users: the lines are of {found.users:,} x {counted(found.context, 'token')} at once"
    elif not found.fits:
        yield f"users: the lines are of a cache as given: {_share(found)}"
    elif found.users == 1:
        yield f"users: one, of {counted(found.context, 'token')}"
    elif found.at_once:
        yield f"users: each of {found.users:,} has {counted(found.context, 'token')} at once"
    else:
        yield f"users: {found.users:,} share {counted(found.capacity_tokens, 'token')}, at most {found.context:,} each"
    if len(plan.cards) > 1:
        layers = " + ".join(str(len(stage.spec.layers)) for stage in plan.case.stages)
        yield f"cards: {layers} layers, one run for each card in order; `serve` uses one card so far, this is arithmetic"
    yield from _on_vision(plan)
    yield plan.drafting.note
    if plan.request.decides and plan.drafter.method != "off":
        users = settings.users or 1
        most = longest_context((plan.served or plan).case, users)
        yield f"speculate: {plan.drafter.method} has room up to {users:,} x {counted(most, 'token')} at once"
    if plan.request.engine.ram_cache_bytes:
        layouts = [budget.layout for budget in found.budgets]
        yield host_note(layouts, plan.request.engine, plan.dtypes, plan.checkpoint_bytes, ram_bytes())
    if plan.request.engine.ssd_cache:
        most = plan.request.engine.ssd_cache_bytes
        where = plan.request.engine.ssd_cache
        yield f"ssd-cache: up to {exact_size(most)} in {where}, by way of host memory, none of the card's"
    if settings.kv_scales == "one":
        yield "kv-scales: one for all is planned; `serve` keeps one for each token and head"
    if format in ("nvfp4", "fp8"):
        yield f"weights: {format} is planned; `serve` does not read it yet"


def _on_vision(plan: Plan) -> Iterator[str]:
    """What --vision auto does, and what `serve` has instead."""
    count = tower_bytes(plan.model)
    if plan.request.plan.vision != "auto" or not count:
        return
    if plan.served is None:
        yield f"vision: the tower's {exact_size(count)} are not planned, and `serve` leaves it out; --vision on plans them"
        return
    found = outcome(plan.served.case, plan.request.engine.context, plan.request.plan.users)
    room = f"; without it {_share(found)}" if not found.at_once else ""
    yield f"vision: there is room for the tower's {exact_size(count)}, which `serve` leaves out so far{room}"


def _share(found: Outcome) -> str:
    if found.users == 1:
        return f"one user has {counted(found.context, 'token')}"
    return f"{found.users:,} users share {counted(found.capacity_tokens, 'token')}, at most {found.context:,} each"
