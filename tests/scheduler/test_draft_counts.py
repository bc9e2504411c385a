"""Who is asked for drafts: nobody beside prompts whose steps are captured without."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs
from tests.support.fake_device import FakeDevice, expected_output

from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.plan.graph_rows import PromptShape
from headrace.scheduler.scheduler import Scheduler
from headrace.speculate.pace import FixedPace
from headrace.types import Request, SamplingParams, StepPlan, StepResult, TokenEvent

LAYOUT = CacheLayout((CacheGroup(0, None, (0,), 1),), 4, (60,), 4, True, 3)
SHAPES = (PromptShape(8, 2, 1), PromptShape(16, 3, 2))


def request(name: str, tokens: int) -> Request:
    return Request(name, tuple(range(tokens)), SamplingParams(), 0, 30)


@pytest.mark.parametrize(
    ("prompts", "drafts"),
    [((7,), 0), ((15,), 0), ((16,), 3), ((5, 5), 0), ((3, 3, 3), 3), ((1,), 3)],
)
def test_beside_captured_prompts_nothing_is_asked_for(prompts: tuple[int, ...], drafts: int) -> None:
    """Of more tokens, prompts or rows than the shapes have, a step is launched kernel by kernel anyway. A prompt of one token
    is a row like all others.
    """
    scheduler = Scheduler(LAYOUT, chunk_tokens=64, pace=FixedPace(3, 3), prompts=SHAPES)
    device, requests = FakeDevice(LAYOUT, recurrent=False), [request("first", 9)]
    found: dict[str, list[int]] = {}

    def step() -> list[int]:
        plan = scheduler.plan()
        assert plan is not None
        asked = [row.asked for row in plan.rows]
        assert scheduler.stats().draft_tokens_chosen == sum(asked)
        events: list[TokenEvent] = scheduler.commit(device.run(plan))
        for event in events:
            found.setdefault(event.request, []).extend(event.tokens)
        return asked

    scheduler.add(requests[0])
    assert [step(), step()] == [[0], [3]]
    for number, tokens in enumerate(prompts):
        requests.append(request(f"r{number}", tokens))
        scheduler.add(requests[-1])
    assert step() == [drafts, *[0] * len(prompts)]
    assert step() == [3] * (1 + len(prompts))
    while scheduler.has_work:
        step()
    assert found == {each.id: expected_output(each) for each in requests}


class Told(FixedPace):
    """What it is told of steps."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.plans: list[tuple[int, bool]] = []
        self.commits: list[tuple[int, float]] = []

    def planned(self, drafts: int, *, usual: bool) -> None:
        super().planned(drafts, usual=usual)
        self.plans.append((drafts, usual))

    def observe(self, slots: Sequence[int], drafted: Sequence[int], accepted: Sequence[int], waited_s: float) -> None:
        self.commits.append((len(slots), waited_s))


@pytest.mark.parametrize("depth", [1, 2])
def test_a_pace_is_told_of_every_step_in_turn(depth: int) -> None:
    """What it had drafts left of, whether the step has other rows than it was asked about, and how long the host waited."""
    pace, device, flight = Told(), FakeDevice(LAYOUT, recurrent=False), deque[StepResult]()
    scheduler = Scheduler(LAYOUT, chunk_tokens=64, pace=pace, prompts=SHAPES)
    for number in range(8):
        if number in (0, 4):
            scheduler.add(request(f"r{number}", 7))
        plan = scheduler.plan()
        assert plan is not None
        flight.append(replace(device.run(plan), waited_s=float(number)))
        if len(flight) == depth:
            scheduler.commit(flight.popleft())
    expected = [(0, False), (3, True), (3, True), (3, True), (0, False), (6, True), (6, True), (6, True)]
    assert pace.plans == expected
    decoding = [(0, 0.0), (1, 1.0), (1, 2.0), (1, 3.0), (1, 4.0), (2, 5.0), (2, 6.0), (2, 7.0)]
    assert pace.commits == decoding[: 9 - depth]


@pytest.mark.parametrize("depth", [1, 2])
def test_drafts_that_are_left_out_leave_nothing_behind(depth: int) -> None:
    """Beside short prompts at every turn, with few pages: each sequence's tokens come, and all is free at the end."""
    layout = CacheLayout((CacheGroup(0, None, (0,), 1),), 4, (24,), 4, True, 3)
    scheduler = Scheduler(layout, chunk_tokens=16, pace=FixedPace(3, 3), prompts=SHAPES)
    device, flight = FakeDevice(layout, recurrent=False), deque[StepPlan]()
    requests, found = [request(f"r{number}", 3 + number % 5) for number in range(12)], dict[str, list[int]]()
    left_out = asked = 0
    for number in range(400):
        if number % 3 == 0 and number // 3 < len(requests):
            scheduler.add(requests[number // 3])
        plan = scheduler.plan()
        if plan is not None:
            flight.append(plan)
            mixed = any(row.tokens for row in plan.rows) and any(not row.tokens for row in plan.rows)
            left_out += mixed and not any(row.asked for row in plan.rows)
            asked += any(row.asked for row in plan.rows)
        if flight and (len(flight) == depth or plan is None):
            for event in scheduler.commit(device.run(flight.popleft())):
                found.setdefault(event.request, []).extend(event.tokens)
        for sequence in scheduler._running.sequences.values():
            assert 0 <= sequence.drafted <= 3 * sequence.in_flight
    assert found == {each.id: expected_output(each) for each in requests}
    assert left_out > 5 and asked > 20 and not scheduler.has_work and scheduler.stats().slots_used == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_drafts_that_were_asked_for_and_not_there_are_not_counted(depth: int) -> None:
    """Rows are planned before it is known what the drafter has."""
    scheduler = Scheduler(LAYOUT, chunk_tokens=64, pace=FixedPace(3, 3))
    device, flight = FakeDevice(LAYOUT, recurrent=False), deque[StepPlan]()
    scheduler.add(request("r0", 7))
    asked = 0
    for _ in range(8):
        plan = scheduler.plan()
        assert plan is not None
        asked += sum(row.asked for row in plan.rows)
        flight.append(plan)
        if len(flight) == depth:
            result = device.run(flight.popleft())
            scheduler.commit(replace(result, rows=tuple(structs.replace(row, proposes=0) for row in result.rows)))
    assert (asked > 0) == (depth > 1) and scheduler.stats().drafted == (0, 0, 0)
