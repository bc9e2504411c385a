"""Whether so many users of so long a context fit, and the most that do: by making the budget, not by rules of thumb.

What fits: where both are asked for, a cache that holds every user at the full context at once. Otherwise, and where the cache's
own size is asked for (cache_bytes), users share it as the engine has it: it fits if the engine starts, and has a page for each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.hardware import Hardware
from headrace.plan.budget import Budget, make_budget, with_least
from headrace.plan.cache_needs import CacheNeeds
from headrace.plan.dtypes import Dtypes
from headrace.plan.engine_settings import MOST_SEQS
from headrace.plan.execution import chunk_tokens
from headrace.plan.memory_limit import memory_limit
from headrace.plan.search import most
from headrace.plan.stages import Stage
from headrace.plan.state_memory import state_bytes_per_sequence
from headrace.quantities import counted, exact_size

NO_LIMIT_BYTES = 1 << 62
"""Memory of a card that is not named."""
USEFUL_TOKENS = 1024
"""A shorter context is of no use to anybody who did not ask for one."""


@dataclass(frozen=True, slots=True)
class Case:
    """All that a plan depends on but the context and the users. config: without those."""

    stages: tuple[Stage, ...]
    config: EngineConfig
    dtypes: Dtypes
    drafts: int
    max_context: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """budgets: one for each card; of what would be needed where it does not fit. at_once: whether they hold every user at the
    full context. why: what is in the way.
    """

    fits: bool
    budgets: tuple[Budget, ...]
    context: int
    users: int
    at_once: bool
    why: str = ""

    @property
    def total_bytes(self) -> int:
        """Of all cards, what the engine takes."""
        return sum(budget.total_bytes for budget in self.budgets)

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the pages of full context hold; the context where no layer needs any."""
        return min((capacity_tokens(budget) for budget in self.budgets), default=0)


def capacity_tokens(budget: Budget) -> int:
    layout = budget.layout
    full = [count for group, count in zip(layout.groups, layout.pages, strict=True) if group.window is None]
    return min(full) * layout.page_tokens if full else budget.context * budget.max_seqs


def limit_bytes(stage: Stage, config: EngineConfig) -> int:
    """What the engine may take of a stage's card."""
    if config.cache_bytes is not None:
        return stage.hardware.free_bytes
    limit, _ = memory_limit(stage.hardware, config)
    return stage.hardware.free_bytes if limit is None else min(limit, stage.hardware.free_bytes)


def outcome(case: Case, context: int | None, users: int | None) -> Outcome:
    """How what was asked for turns out."""
    try:
        return _found(case, context, users)
    except ConfigError as error:
        needed = _at_once(_unpinned(case), context or min(USEFUL_TOKENS, case.max_context), users or 1)
        return replace(needed, fits=False, why=str(error))


def fits(case: Case, context: int | None, users: int | None) -> bool:
    """Whether what was asked for does. What it would need is not worked out, as searches ask for much that does not."""
    try:
        return _found(case, context, users).fits
    except ConfigError:
        return False


def _found(case: Case, context: int | None, users: int | None) -> Outcome:
    """Raises ConfigError where no engine would start, or not with a page for each of the users that are asked for."""
    unnamed = any(stage.hardware.memory_bytes == NO_LIMIT_BYTES for stage in case.stages)
    if case.config.cache_bytes is None and ((context and users) or unnamed):
        return _at_once(case, context or case.max_context, users or 1)
    budgets = _shared(case, context, users)
    seqs, longest = budgets[0].max_seqs, min(budget.context for budget in budgets)
    found = _checked(case, Outcome(True, budgets, longest, users or seqs, at_once=False))
    size = case.config.page_tokens
    if users and found.fits and found.capacity_tokens < users * size:
        pages = counted(found.capacity_tokens // size, "page")
        raise ConfigError(f"{pages} of {counted(size, 'token')} are not one for each of {counted(users, 'user')}")
    return found


def _unpinned(case: Case) -> Case:
    return replace(case, config=replace(case.config, cache_bytes=None))


def _checked(case: Case, found: Outcome) -> Outcome:
    """Whether every card has what the engine takes of it."""
    for stage, budget in zip(case.stages, found.budgets, strict=True):
        if budget.total_bytes > (limit := limit_bytes(stage, case.config)):
            needed = exact_size(budget.total_bytes)
            why = f"the engine needs {needed}, and may use {exact_size(limit)} of the {stage.hardware.name}"
            return replace(found, fits=False, why=why)
    return found


def _at_once(case: Case, context: int, users: int) -> Outcome:
    """Every user at the full context."""
    budgets = tuple(_needed(case, stage, context, users) for stage in case.stages)
    return _checked(case, Outcome(True, _equal(case, budgets), context, users, at_once=True))


def _needed(case: Case, stage: Stage, context: int, users: int) -> Budget:
    config = replace(case.config, context=context, max_seqs=users, memory_bytes=None, memory_fraction=None)
    if config.gpu_checkpoint_bytes is None:  # what is left over is theirs
        config = replace(config, gpu_checkpoint_bytes=0)
    config = replace(config, chunk_tokens=chunk_tokens(config, stage.hardware))
    cache = CacheNeeds(stage.spec, config, case.dtypes, case.drafts, stage.extras).full_bytes(context, users)
    return _budget(case, stage, replace(config, cache_bytes=max(1, cache)), unlimited(stage.hardware))


def unlimited(hardware: Hardware) -> Hardware:
    return replace(hardware, memory_bytes=NO_LIMIT_BYTES, free_bytes=NO_LIMIT_BYTES)


def _budget(case: Case, stage: Stage, config: EngineConfig, hardware: Hardware) -> Budget:
    return make_budget(stage.spec, stage.weights, hardware, config, case.dtypes, case.drafts, stage.extras)


def _shared(case: Case, context: int | None, users: int | None) -> tuple[Budget, ...]:
    """As the engine would start; all cards have as many slots, pages and checkpoints as the smallest. Raises ConfigError."""
    budgets = _all(case, replace(case.config, context=context, max_seqs=users))
    seqs = min(budget.max_seqs for budget in budgets)
    if any(budget.max_seqs != seqs for budget in budgets):
        budgets = _all(case, replace(case.config, context=context, max_seqs=seqs))
    return _equal(case, budgets)


def _equal(case: Case, budgets: tuple[Budget, ...]) -> tuple[Budget, ...]:
    """What is on every card there is as often as on the smallest; a card without recurrent layers has no states."""
    if len(budgets) == 1:
        return budgets
    pages = min(capacity_tokens(budget) for budget in budgets) // case.config.page_tokens
    states = [state_bytes_per_sequence(stage.spec, case.dtypes) for stage in case.stages]
    kept = min((b.layout.checkpoints for b, size in zip(budgets, states, strict=True) if size), default=0)
    return tuple(with_least(b, pages, kept, case.dtypes, size) for b, size in zip(budgets, states, strict=True))


def _all(case: Case, config: EngineConfig) -> tuple[Budget, ...]:
    if config.cache_bytes is None:
        return tuple(_budget(case, stage, config, stage.hardware) for stage in case.stages)
    return tuple(_budget(case, stage, config, unlimited(stage.hardware)) for stage in case.stages)


def longest_context(case: Case, users: int) -> int:
    """The longest context that so many users fit with; 0 if none does."""
    page = case.config.page_tokens
    pages = most(lambda count: fits(case, min(count * page, case.max_context), users), -(-case.max_context // page))
    return min(pages * page, case.max_context)


def most_users(case: Case, context: int) -> int | None:
    """The most users of this context that fit; None where nothing limits them."""
    limit = _users_with_states(case)
    return None if limit is None else most(lambda count: fits(case, context, count), limit)


def most_sharing(case: Case, tokens: int, limit: int) -> int:
    """The most users, up to a limit, that share a cache with so many tokens for each."""
    def has_room(count: int) -> bool:
        try:
            found = _found(case, None, count)
        except ConfigError:
            return False
        return found.fits and found.capacity_tokens >= count * tokens

    states = _users_with_states(case)
    return most(has_room, limit if states is None else min(limit, states))


def _users_with_states(case: Case) -> int | None:
    """As many as there may be, or more than have room for their states and a page; None on a card of any size."""
    free = max(stage.hardware.free_bytes for stage in case.stages)
    if free >= NO_LIMIT_BYTES:
        return None
    one, two = (_at_once(_unpinned(case), 2, count).total_bytes for count in (1, 2))
    return min(MOST_SEQS, free * len(case.stages) // (two - one))
