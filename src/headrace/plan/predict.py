"""Speed from bytes and bandwidth: a prediction, which nothing has measured.

A step takes as long as its floor (plan.floor) at SHARE of the card's data-sheet rates: an H200 reads weights at 3.9 of its 4.8
TB/s and multiplies at 790 of its 989 TFLOP/s. Over several cards a step goes through one after the other. Nothing is drafted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.plan.execution import chunk_tokens
from headrace.plan.fit import most_users
from headrace.plan.floor import Ceilings, Load, step_work
from headrace.plan.planner import Plan
from headrace.plan.weight_memory import weight_bytes

SHARE = 0.8
SHORT_CONTEXT = 1024
MOST_USERS = 64


@dataclass(frozen=True, slots=True)
class Decode:
    """So many users decode, each with this context."""

    users: int
    context: int
    tokens_per_s: float
    tokens_per_s_each: float


@dataclass(frozen=True, slots=True)
class Prefill:
    """One prompt of so many tokens, alone."""

    tokens: int
    tokens_per_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Predicted:
    decode: tuple[Decode, ...]
    prefill: tuple[Prefill, ...]


def predict(plan: Plan, context: int, capacity_tokens: int) -> Predicted | None:
    """At a short context and at this one; None for cards whose rates are not known. capacity_tokens: of the plan's cache."""
    rates = _Rates(plan)
    if not rates.known:
        return None
    contexts = sorted({min(SHORT_CONTEXT, context), context})
    decode = tuple(row for each in contexts for row in _decode(plan, rates, each, capacity_tokens))
    return Predicted(decode, tuple(_prefill(plan, rates, each) for each in contexts))


class _Rates:
    """Seconds of a step on the plan's cards."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._ceilings = [
            Ceilings(SHARE * card.bytes_per_s, SHARE * card.flops_per_s)
            for card in plan.cards if card.bytes_per_s and card.flops_per_s
        ]
        self.known = len(self._ceilings) == len(plan.cards)
        sizes = [weight_bytes(stage.weights, plan.dtypes.compute) for stage in plan.case.stages]
        self._shares = [size / sum(sizes) for size in sizes]
        self._weights = _bytes_of_parameters(plan)

    def step_s(self, load: Load) -> float:
        """Each card has its share of the weights, and about as much of the rest."""
        work = step_work(self._plan.model.spec, self._plan.dtypes, self._weights, load)
        each = zip(self._ceilings, self._shares, strict=True)
        return sum(share * ceilings.floor_s(work) for ceilings, share in each)


def _bytes_of_parameters(plan: Plan) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    whole = plan.model.weight_map
    for weight in whole.weights:
        found[weight.target] += weight_bytes(type(whole)((weight,)), plan.dtypes.compute)
    return found


def _decode(plan: Plan, rates: _Rates, context: int, capacity_tokens: int) -> Iterator[Decode]:
    """Of 1, 2, 4 ... users, as many as have the context at once."""
    limit = most_users(plan.case, context)
    if limit is not None and plan.case.config.cache_bytes is not None:
        limit = min(limit, capacity_tokens // context)
    users = 1
    while users <= min(MOST_USERS, MOST_USERS if limit is None else limit):
        each = 1 / rates.step_s(Load(users, 1, context))
        yield Decode(users, context, users * each, each)
        users *= 2


def _prefill(plan: Plan, rates: _Rates, tokens: int) -> Prefill:
    chunk = min(chunk_tokens(plan.case.config, stage.hardware) for stage in plan.case.stages)
    ends = [*range(chunk, tokens, chunk), tokens]
    begins = [0, *ends[:-1]]
    seconds = sum(
        rates.step_s(Load(1, end - begin, end, sampled=int(end == tokens))) for begin, end in zip(begins, ends, strict=True)
    )
    return Prefill(tokens, tokens / seconds, seconds)
