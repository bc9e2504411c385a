"""What the scheduler has of the prefix cache: who waits, where sequences resume, what is kept when they end or give way."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace

import pytest
from tests.scheduler.test_scheduler import FULL, all_nodes, make_request, prefix_settings, run_all
from tests.support.fake_device import FakeDevice, expected_output

from headrace.cache.layout import CacheLayout
from headrace.scheduler import hits as hits_module
from headrace.scheduler.scheduler import Scheduler
from headrace.types import Request, SamplingParams, StepPlan, TokenEvent

DOCUMENT = tuple(4 + i % 40 for i in range(21))


class Engine:
    """A scheduler and its device. `starts`: where sequences began, by request, once for each time they took a slot."""

    def __init__(
        self, *, recurrent: bool = True, pages: int = 40, slots: int = 4, chunk: int = 8, depth: int = 1, checkpoints: int = 8,
        host_states: int = 0, beside: bool = False,
    ) -> None:
        layout = CacheLayout((FULL,), 4, (pages,), slots, checkpoints=checkpoints * recurrent)
        host = CacheLayout((FULL,), 4, (4 * pages,), 0, checkpoints=host_states) if host_states else None
        settings = replace(prefix_settings(recurrent, 4), host=host)
        self.device, self.depth = FakeDevice(layout, recurrent=recurrent), depth
        self.scheduler = Scheduler(layout, chunk_tokens=chunk, prefixes=settings, memory=self.device if beside else None)
        self.starts: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}

    def run(self, *requests: Request) -> dict[str, TokenEvent]:
        """All to their ends, which are returned."""
        for request in requests:
            self.scheduler.add(request)
        flight: deque[StepPlan] = deque()
        ends, outputs = {}, {request.id: [] for request in requests}
        while (plan := self.scheduler.plan()) is not None or flight:
            if plan is not None:
                self._note(plan)
                flight.append(plan)
            if plan is None or len(flight) == self.depth:
                for event in self.scheduler.commit(self.device.run(flight.popleft())):
                    outputs[event.request] += event.tokens
                    ends |= {event.request: event} if event.finish_reason else {}
        assert outputs == {request.id: expected_output(request) for request in requests}
        return ends

    def step(self) -> bool:
        """One step of what was added; whether there was one."""
        plan = self.scheduler.plan()
        if plan is not None:
            self._note(plan)
            self.scheduler.commit(self.device.run(plan))
        return plan is not None

    def _note(self, plan: StepPlan) -> None:
        names = {admission.sequence: admission.request.id for admission in plan.admissions}
        self.names = getattr(self, "names", {}) | names
        for admission in plan.admissions:
            self.starts.setdefault(admission.request.id, []).append(admission.start)
        for row in plan.rows:
            name = self.names[row.sequence]
            self.computed[name] = self.computed.get(name, 0) + (len(row.tokens) or 1)


def request(name: str, prompt: tuple[int, ...], answer: int = 3, **fields: object) -> Request:
    return replace(make_request(name, prompt, answer), eos_ids=(), **fields)


@pytest.mark.parametrize("recurrent", [False, True])
def test_requests_that_begin_alike_wait_for_one_of_them(recurrent: bool) -> None:
    engine = Engine(recurrent=recurrent)
    ends = engine.run(*(request(f"r{i}", (*DOCUMENT, 4 + i, 9)) for i in range(4)))
    assert engine.starts["r0"] == [0]
    whole = len(DOCUMENT) if recurrent else len(DOCUMENT) // 4 * 4  # a partial page stays with its writer
    assert [engine.starts[f"r{i}"] for i in (1, 2, 3)] == [[whole]] * 3
    assert [ends[f"r{i}"].cached_tokens for i in range(4)] == [0, *[whole] * 3]
    stats = engine.scheduler.stats()
    assert stats.prefix_hits_total == 3 and stats.cached_tokens_total == 3 * whole and stats.prompt_tokens_total == 4 * 23
    assert dict(stats.prefix_misses)["cold"] == 1 and stats.kv_pages_used == 0 < stats.kv_pages_cached


@pytest.mark.parametrize(("depth", "recurrent"), [(1, False), (1, True), (2, True), (3, True)])
def test_the_next_turn_goes_on_from_the_answers_end(depth: int, recurrent: bool) -> None:
    engine = Engine(depth=depth, recurrent=recurrent)
    turn, answers = request("t0", DOCUMENT[:5], 4), []
    engine.run(turn)
    for number in range(1, 5):
        known = (*turn.prompt, *expected_output(turn))
        turn = request(f"t{number}", (*known, 30 + number), 4)
        answers.append(engine.run(turn)[turn.id].cached_tokens - len(known))
    assert answers == [-1] * 4, "the last token of an answer is sampled and not computed"


@pytest.mark.parametrize(("depth", "computed"), [(1, -1), (2, 0)])
def test_an_end_token_is_computed_where_steps_overlap(depth: int, computed: int) -> None:
    """Then it belongs to the state that is kept."""
    engine = Engine(depth=depth)
    first = next(
        each for each in (replace(make_request("t0", (seed + 5, 6, 7), 30, seed=seed)) for seed in range(50))
        if expected_output(each)[-1] == 3
    )
    engine.run(first)
    known = (*first.prompt, *expected_output(first))
    second = request("t1", (*known, 8, 9), seed=first.seed)
    assert engine.run(second)["t1"].cached_tokens == len(known) + computed


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("tokens", [2, 3, 9, 20, 21])
def test_a_whole_prompt_asked_again_is_a_hit_but_for_its_last_token(recurrent: bool, tokens: int) -> None:
    """The first time already leaves what is wanted: the second is a step of one token, and the same each time."""
    engine = Engine(recurrent=recurrent, chunk=16)
    for number in range(4):
        name = f"r{number}"
        assert engine.run(request(name, DOCUMENT[:tokens]))[name].cached_tokens == (tokens - 1 if number else 0)
        assert engine.computed[name] == (3 if number else tokens + 2)
    stats = engine.scheduler.stats()
    assert stats.prefix_hits_total == 3 and stats.prefix_misses == (("cold", 1),) and stats.prefix_short == ()


def test_messages_that_are_rendered_anew_are_computed_from_the_last_one_that_is_not() -> None:
    engine = Engine()
    engine.run(request("t0", (*DOCUMENT[:17], 40, 41), message_ends=(6, 17)))
    rewritten = request("t1", (*DOCUMENT[:17], 42, 43, 44), message_ends=(6, 17, 19))
    assert engine.run(rewritten)["t1"].cached_tokens == 17
    assert engine.run(request("t2", (*DOCUMENT[:6], 1, 2, 3), message_ends=(6,)))["t2"].cached_tokens == 6


def test_a_split_that_was_seen_twice_is_resumed_the_third_time() -> None:
    engine = Engine()
    ends = [engine.run(request(f"r{i}", (*DOCUMENT[:14], 40 + i, 9)))[f"r{i}"].cached_tokens for i in range(3)]
    assert ends == [0, 10, 14], "10 tokens: states are kept inside of long prompts too"
    stats = engine.scheduler.stats()
    assert stats.prefix_misses == (("cold", 1),) and stats.prefix_short == (("no_checkpoint", 1), ("diverged", 1))


def test_who_does_not_read_and_who_does_not_write() -> None:
    engine = Engine()
    scored = SamplingParams(prompt_logprobs=0)
    engine.run(request("first", DOCUMENT, params=SamplingParams(cache_prompt=False)))
    engine.run(request("second", DOCUMENT))
    assert engine.starts == {"first": [0], "second": [0]}, "what opted out is not there"
    more = (*DOCUMENT, 7)
    engine.run(request("out", more, params=SamplingParams(cache_prompt=False)))
    engine.run(request("scored", more, params=scored))
    engine.run(request("other", more, salt="other"))
    assert {engine.starts[name][0] for name in ("out", "scored", "other")} == {0}
    assert engine.run(request("reads", more))["reads"].cached_tokens == 20
    assert dict(engine.scheduler.stats().prefix_misses) == {"opted_out": 2, "cold": 1, "prompt_logprobs": 1, "salt": 1}


@pytest.mark.parametrize(("recurrent", "start"), [(False, 24), (True, 22)])
def test_preempted_sequences_resume(recurrent: bool, start: int) -> None:
    """The older one takes a page, the last of the younger, whose other pages are there when it is its turn again."""
    engine = Engine(recurrent=recurrent, pages=9, chunk=32)
    engine.run(request("old", (44, 45, 46, 47), 9), request("young", DOCUMENT + (1, 2), 9))
    assert engine.scheduler.stats().preemptions_total == 1
    assert engine.starts == {"old": [0], "young": [0, start]}


def test_the_preempted_ones_state_is_kept() -> None:
    """It finds no page, and gives way itself: all of its own are there when the older one has ended."""
    engine = Engine(pages=8, chunk=32)
    ends = engine.run(request("old", (44, 45, 46, 47), 5), request("young", DOCUMENT + (1, 2), 9))
    assert engine.scheduler.stats().preemptions_total == 1
    assert engine.starts == {"old": [0], "young": [0, 24]} and ends["young"].cached_tokens == 0


def test_a_stopped_prompt_goes_on_where_it_was() -> None:
    """A client that gives up and tries again."""
    engine = Engine(chunk=5)
    engine.scheduler.add(request("gone", DOCUMENT))
    for _ in range(2):
        plan = engine.scheduler.plan()
        assert plan is not None
        engine.scheduler.commit(engine.device.run(plan))
    engine.scheduler.cancel("gone")
    engine.scheduler.drain_events()
    assert engine.run(request("again", DOCUMENT))["again"].cached_tokens == 10


def test_a_long_prompt_that_is_computed_says_why(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(hits_module, "LONG_TOKENS", 20)
    engine = Engine()
    with caplog.at_level(logging.INFO, logger="headrace"):
        engine.run(request("long", DOCUMENT))
        engine.run(request("short", DOCUMENT[1:10]))
        engine.run(request("hit", (*DOCUMENT, 1)))
    assert [record.getMessage() for record in caplog.records] == [
        "request long: 21 of 21 prompt tokens are computed: nothing that begins so was ever cached"
    ]


def test_without_settings_nothing_is_kept() -> None:
    layout = CacheLayout((FULL,), 4, (40,), 4)
    scheduler, device = Scheduler(layout, chunk_tokens=8), FakeDevice(layout)
    for number in range(3):
        scheduler.add(request(f"r{number}", DOCUMENT))
        assert all(event.cached_tokens == 0 for event in run_all(scheduler, device))
    stats = scheduler.stats()
    assert stats.kv_pages_cached == stats.prefix_hits_total == 0 and stats.prefix_misses == ()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("recurrent", [False, True])
def test_a_large_cache_has_free_pages_before_they_are_wanted(recurrent: bool, depth: int) -> None:
    """What came first goes, a few entries in each step; small caches keep all that they can."""
    engine = Engine(pages=640, checkpoints=192, recurrent=recurrent, depth=depth)
    kept = engine.scheduler._prefixes.cache
    for number in range(80):
        engine.run(request(f"r{number}", tuple(4 + (number * 7 + i * i) % 1000 for i in range(29)), 3))
        assert kept.pools[0].free >= 640 // 64 and kept.checkpoint_slots.free >= (192 // 64) * recurrent
    assert kept.unread_pages[0] > 640 * 0.9
    small = Engine(pages=40, checkpoints=8, recurrent=recurrent, depth=depth)
    for number in range(20):
        small.run(request(f"r{number}", tuple(4 + (number * 7 + i * i) % 1000 for i in range(21)), 3))
    assert small.scheduler._prefixes.cache.pools[0].free < 40 // 4


def test_in_host_memory_a_longer_state_takes_the_only_place() -> None:
    """What it continues is not read there: the device has computed what follows."""
    engine = Engine(host_states=1)
    turn = request("t0", DOCUMENT[:5], 4)
    engine.run(turn)
    longer = (*turn.prompt, *expected_output(turn), *DOCUMENT[5:])
    engine.run(request("t1", longer, 4))
    host = engine.scheduler._prefixes.host
    assert host is not None and host.cache.checkpoint_slots.free == 0
    (state,) = [each for node in all_nodes(host.cache) for each in node.checkpoints.values()]
    assert state.tokens > len(longer)


@pytest.mark.parametrize("recurrent", [False, True])
def test_pages_that_are_given_back_are_not_counted_twice(recurrent: bool) -> None:
    """What has ended keeps its pages while they are copied to the host. A prompt that begins alike reads them: they are no room
    for the rest of it, and it waits for somebody who runs instead of beginning without room.
    """
    engine = Engine(recurrent=recurrent, pages=12, chunk=40, host_states=8)
    engine.scheduler.add(request("runs", tuple(range(30, 43)), 12))
    engine.step()
    short = request("short", DOCUMENT[:16], 1)
    engine.scheduler.add(short)
    engine.step()
    engine.scheduler.add(request("long", (*DOCUMENT[:16], *range(20, 37)), 2, message_ends=(16,)))
    while engine.step():
        pass
    stats = engine.scheduler.stats()
    assert engine.starts == {"runs": [0], "short": [0], "long": [16]}
    assert stats.preemptions_total == 0 and stats.requests_running == 0


def arriving(recurrent: bool) -> tuple[Engine, Request]:
    """An engine that computes "beside", and a request whose beginning has left the device for host memory."""
    engine = Engine(recurrent=recurrent, pages=14, chunk=40, host_states=20, beside=True)
    engine.run(request("first", DOCUMENT, 1))
    for other in (1, 2):
        engine.run(request(f"other {other}", tuple(range(other, 38 + other))[::-1], 1))
    engine.scheduler.add(request("beside", (47, 48), 20))
    engine.step()
    again = request("again", (*DOCUMENT, 49), 2)
    engine.scheduler.add(again)
    return engine, again


@pytest.mark.parametrize("recurrent", [False, True])
def test_others_go_on_until_what_comes_from_host_memory_has_landed(recurrent: bool) -> None:
    engine, _ = arriving(recurrent)
    for _ in range(4):
        engine.step()
    assert engine.computed["beside"] == 6 - recurrent and "again" not in engine.computed, "nobody waited"
    assert engine.scheduler.stats().requests_running == 2
    engine.device.land()
    engine.step()
    assert engine.computed["beside"] == 7 - recurrent and engine.computed["again"] > 0 and engine.starts["again"][0] >= 20
    while engine.step():
        pass
    assert engine.scheduler.stats().kv_pages_used == 0


@pytest.mark.parametrize("recurrent", [False, True])
def test_nobody_else_has_rows_so_the_device_waits(recurrent: bool) -> None:
    engine, _ = arriving(recurrent)
    engine.step()
    engine.scheduler.cancel("beside")
    engine.step()
    assert engine.computed["again"] > 0 and engine.starts["again"][0] >= 20


@pytest.mark.parametrize("recurrent", [False, True])
def test_pages_of_what_is_given_up_on_its_way_are_waited_for(recurrent: bool) -> None:
    engine, again = arriving(recurrent)
    engine.step()
    engine.scheduler.cancel("again")
    assert engine.scheduler.stats().requests_running == 1
    plan = engine.scheduler.plan()
    assert plan is not None and plan.host is not None and plan.host.waits and not plan.host.from_host
    engine.scheduler.commit(engine.device.run(plan))
    engine.scheduler.add(replace(again, id="once more"))
    while engine.step():
        engine.device.land()
    assert engine.starts["once more"][0] >= 20 and engine.scheduler.stats().kv_pages_used == 0
