"""Who is asked for drafts: nobody beside prompts whose steps are captured without."""

from __future__ import annotations

import pytest
from tests.support.fake_device import FakeDevice, expected_output

from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.plan.graph_rows import PromptShape
from headrace.scheduler.scheduler import Scheduler
from headrace.speculate.pace import FixedPace
from headrace.types import Request, SamplingParams, TokenEvent

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
