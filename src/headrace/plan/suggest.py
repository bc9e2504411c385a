"""What would fit instead: the settings nearest to those asked for, each tried by making its budget.

Changes are combined one, then two, then three at a time; the fewest that lead anywhere are suggested, and of one more those
that give more tokens or users. Shorter contexts and fewer users are as long and as many as fit. Where that leads nowhere all
changes are made, and those taken back that are not needed: what fits at all is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, islice
from typing import Any

from headrace.plan.cards import CARDS
from headrace.plan.changes import Change, changes, last_resorts
from headrace.plan.fit import USEFUL_TOKENS, Outcome, fits, longest_context, most_sharing, most_users, outcome
from headrace.plan.planner import Plan, Request
from headrace.plan.search import most

MOST_CHANGES = 3
MOST_CHOICES = 48
"""Combinations of changes that are tried for one card, and fewer for several, which take longer each: a plan takes a second."""
MOST_SUGGESTIONS = 8
Remake = Callable[[Request], Plan]
Chosen = tuple[Change, ...]
Changed = Callable[[Chosen], Plan]
"""The plan with changes, made once."""


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
class Instead:
    """suggestions: the nearest first, and the smallest card on which it fits as asked. least: where nothing fits on this card,
    what would need least.
    """

    suggestions: tuple[Suggestion, ...] = ()
    least: Suggestion | None = None


def instead(plan: Plan, remake: Remake) -> Instead:
    """Of a plan that does not fit. remake: the plan of a changed request, for the cards that it names."""
    found = _nearest(plan, remake)
    here = Instead(tuple(found[: MOST_SUGGESTIONS - 1])) if found else _smallest(plan, remake)
    return replace(here, suggestions=(*here.suggestions, *_larger_card(plan, remake)))


def _nearest(plan: Plan, remake: Remake) -> list[Suggestion]:
    """Few changes, that leave a context of use."""
    changed = cache(lambda chosen: _changed(plan, remake, chosen))
    choices = tuple(islice(_choices(changes(plan)), MOST_CHOICES // len(plan.cards)))
    found: list[Suggestion] = []
    for count in range(1, MOST_CHANGES + 1):
        enough = bool(found)
        as_asked = [_tried(changed(chosen), chosen, {}) for chosen in choices if len(chosen) == count]
        with_less = [each for chosen in choices if len(chosen) == count - 1 for each in _with_less(changed, remake, chosen)]
        for each in (*as_asked, *with_less):
            if each and _is_of_use(plan, each) and not any(_does_as_well(other, each) for other in found):
                found.append(each)
        if enough:
            break
    return found


def _choices(among: Sequence[Change]) -> Iterator[Chosen]:
    """None, one, two ... of different kinds."""
    for count in range(MOST_CHANGES + 1):
        for chosen in combinations(among, count):
            if len({change.kind for change in chosen}) == count:
                yield chosen


def _changed(plan: Plan, remake: Remake, chosen: Chosen) -> Plan:
    request = plan.request
    for change in chosen:
        request = change.apply(request)
    return remake(request) if chosen else plan


def _is_of_use(plan: Plan, one: Suggestion) -> bool:
    """A shorter context than the least is of no use instead of what was asked for."""
    least = _least_context(plan)
    return one.context >= least and (plan.request.plan.users is None or one.capacity_tokens >= one.users * least)


def _least_context(plan: Plan) -> int:
    asked = plan.request.engine.context
    return min(USEFUL_TOKENS, plan.case.max_context, max(2, asked // 2) if asked else USEFUL_TOKENS)


def _does_as_well(other: Suggestion, one: Suggestion) -> bool:
    """Whether `other` changes nothing else and gives no less."""
    changed = other.settings.keys() - {"context", "users"}
    same = changed <= one.settings.keys() and all(other.settings[name] == one.settings[name] for name in changed)
    return same and other.context >= one.context and other.users >= one.users


def _asked(plan: Plan) -> tuple[int | None, int | None]:
    return plan.request.engine.context, plan.request.plan.users


def _with_less(changed: Changed, remake: Remake, chosen: Chosen) -> Iterator[Suggestion | None]:
    plan, least = changed(chosen), _least_context(changed(()))
    for less in _less(plan):
        found = _tried(remake(_with(plan.request, less)), chosen, less)
        if found and "context" not in less and not found.at_once:
            found = _with_drafter(plan, remake, chosen, found, least)
        yield found


def _with_drafter(plan: Plan, remake: Remake, chosen: Chosen, found: Suggestion, least: int) -> Suggestion | None:
    """Users who share what there is beside a drafter, which auto takes where there is room for so many."""
    if found.capacity_tokens >= found.users * least:
        return found
    with_drafter = remake(_with(plan.request, {"users": found.users}))
    less = {"users": most_sharing(with_drafter.case, least, found.users)}
    return _tried(remake(_with(plan.request, less)), chosen, less) if less["users"] else None


def _less(plan: Plan) -> Iterator[Mapping[str, int]]:
    """A shorter context, fewer users, or both where neither is enough."""
    (context, users), least = _asked(plan), _least_context(plan)
    longest = longest_context(plan.limits, users or 1) if context else 0
    fewer = _fewer_users(plan, context, users, least)
    if context and least <= longest < context:
        yield {"context": longest}
    if fewer and (users is None or fewer < users):
        yield {"users": fewer}
    if context and users and longest < least and not fewer:
        yield from _half(plan, context, users, least)


def _fewer_users(plan: Plan, context: int | None, users: int | None, least: int) -> int | None:
    if context:
        return most_users(plan.limits, context)
    return most_sharing(plan.limits, least, users - 1) if users else None


def _half(plan: Plan, context: int, users: int, least: int) -> Iterator[Mapping[str, int]]:
    """Half as much of both, and half of that, until it fits; so many users then have what they can, and so has one alone."""
    times = max(context, users).bit_length()

    def halved(spared: int) -> tuple[int, int]:
        return max(least, context >> times - spared), max(1, users >> times - spared)

    spared = most(lambda count: fits(plan.limits, *halved(count)), times - 1)
    for some in {halved(spared)[1]: None, 1: None} if spared else ():
        yield {"context": longest_context(plan.limits, some), "users": some}


def _with(request: Request, less: Mapping[str, int]) -> Request:
    """With another context or number of users."""
    context, users = (less.get(*pair) for pair in (("context", request.engine.context), ("users", request.plan.users)))
    return replace(request, engine=replace(request.engine, context=context), plan=replace(request.plan, users=users))


def _tried(plan: Plan, chosen: Chosen, less: Mapping[str, int]) -> Suggestion | None:
    """The plan of a request that was changed so, if it fits."""
    found = outcome(plan.case, *_asked(plan))
    return _suggestion(found, chosen, less) if found.fits else None


def _suggestion(found: Outcome, chosen: Chosen, less: Mapping[str, int]) -> Suggestion:
    settings = {name: value for change in chosen for name, value in change.settings.items()} | dict(less)
    return Suggestion(settings, found.context, found.users, found.at_once, found.capacity_tokens, found.total_bytes)


def _smallest(plan: Plan, remake: Remake) -> Instead:
    """All changes, and what makes an engine slower if nothing else helps, as far as they are needed."""
    options, resorts = changes(plan), tuple(last_resorts(plan))
    for among in (options, (*options, *resorts)):
        chosen = tuple({change.kind: change for change in among}.values())
        changed = _changed(plan, remake, chosen)
        for less in ({}, *_less(changed), *_one_user(changed)):
            if found := _tried(remake(_with(changed.request, less)), chosen, less):
                return Instead((_needed(plan, remake, found, chosen, less),))
    least = outcome(changed.limits, min(_least_context(plan), changed.case.config.page_tokens), 1)
    return Instead(least=_suggestion(least, chosen, {}))


def _one_user(plan: Plan) -> Iterator[Mapping[str, int]]:
    """As little as an engine starts with."""
    context, users = _asked(plan)
    one: Mapping[str, int] = {"users": 1} if users and users > 1 else {}
    if context:
        yield {"context": max(2, longest_context(plan.limits, 1)), **one}
    elif one:
        yield one


def _needed(plan: Plan, remake: Remake, found: Suggestion, chosen: Chosen, less: Mapping[str, int]) -> Suggestion:
    """Without the changes that are not needed, the last first."""
    for change in reversed(chosen):
        fewer = tuple(other for other in chosen if other is not change)
        tried = _tried(remake(_with(_changed(plan, remake, fewer).request, less)), fewer, less)
        if tried and (_is_of_use(plan, tried) or not _is_of_use(plan, found)):
            found, chosen = tried, fewer
    return found


def _larger_card(plan: Plan, remake: Remake) -> Iterator[Suggestion]:
    """The smallest of the table on which it fits as it is asked for, instead of another one of it."""
    settings = plan.request.plan
    if settings.gpu is None or settings.vram_bytes is not None or len(plan.cards) > 1:
        return
    for each in sorted(CARDS.values(), key=lambda card: card.memory_bytes - card.kept_bytes):
        if each.memory_bytes > plan.cards[0].memory_bytes:
            larger = remake(replace(plan.request, plan=replace(settings, gpu=each.name)))
            if found := _tried(larger, (), {}):
                yield replace(found, settings={"gpu": each.name})
                return
