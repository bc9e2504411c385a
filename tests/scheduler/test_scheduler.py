"""The scheduler against a fake device: whatever arrives, leaves, or runs out of pages, every request gets its own tokens, and
whatever of it is cached, every page and checkpoint has one owner."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from tests.support.fake_device import VOCAB, FakeDevice, expected_output
from tests.support.fake_ssd import FakeSsd
from tests.support.scripted_drafter import ScriptedDrafter

from headrace.cache.checkpoint_places import CheckpointPlaces
from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.cache.pages import GONE
from headrace.cache.policy.flops_per_byte import FlopsPerByte
from headrace.cache.prefix.cache import PrefixCache
from headrace.cache.prefix.node import Node
from headrace.cache.prefix.settings import PrefixSettings
from headrace.scheduler.host_tier import HostTier
from headrace.scheduler.scheduler import Scheduler
from headrace.scheduler.sequence import Sequence
from headrace.scheduler.ssd_tier import SsdSettings
from headrace.types import Request, SamplingParams, StepPlan, TokenEvent

CONTEXT = 40
FULL = CacheGroup(0, None, (0,), 1)
WINDOW = CacheGroup(1, 7, (1,), 1)


def prefix_settings(recurrent: bool, split_tokens: int) -> PrefixSettings:
    policy = FlopsPerByte(10.0, 1.0, 4, 30 if recurrent else 0)
    return PrefixSettings(policy, split_tokens, CheckpointPlaces(5, split_tokens) if recurrent else None)


def all_nodes(cache: PrefixCache) -> list[Node]:
    left, found = list(cache._nodes.roots.values()), []
    while left:
        found.append(left.pop())
        left.extend(found[-1].children)
    return found


def make_request(name: str, prompt: tuple[int, ...], max_tokens: int, *, seed: int = 0, stop: tuple[int, ...] = ()) -> Request:
    params = SamplingParams(stop_token_ids=stop)
    return Request(name, prompt, params, seed, min(max_tokens, CONTEXT - len(prompt)), eos_ids=(3,))


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, cancellations and steps in any order, with up to `depth` uncommitted plans."""

    @initialize(
        page=st.integers(1, 5),
        slots=st.integers(1, 5),
        chunk=st.integers(1, 24),
        spare=st.integers(0, 12),
        depth=st.integers(1, 3),
        windowed=st.booleans(),
        drafts=st.sampled_from((0, 0, 1, 4, 15)),
        prefixes=st.sampled_from((False, True, True)),
        checkpoints=st.sampled_from((0, 0, 1, 3, 8)),
        split_tokens=st.integers(1, 6),
        host_pages=st.sampled_from((0, 0, 3, 12, 60)),
        ssd=st.sampled_from((None, 0.0, 0.3)),
        block_pages=st.integers(1, 3),
        seed=st.integers(0, 99),
    )
    def start(
        self, page: int, slots: int, chunk: int, spare: int, depth: int, windowed: bool, drafts: int, prefixes: bool,
        checkpoints: int, split_tokens: int, host_pages: int, ssd: float | None, block_pages: int, seed: int,
    ) -> None:
        pages = -(-CONTEXT // page) + spare
        groups = (FULL, WINDOW) if windowed else (FULL,)
        # Few window pages too: one sequence's window and chunk, and little more.
        window_pages = -(-(7 + chunk + depth * drafts) // page) + 2 + spare
        counts = (pages, window_pages)[: len(groups)]
        self.layout = CacheLayout(groups, page, counts, slots, drafts > 0, drafts, checkpoints * prefixes)
        self.drafter = ScriptedDrafter({}, drafts, VOCAB, chances=(0.5, 0.9, 1.0)) if drafts else None
        settings = prefix_settings(checkpoints > 0, split_tokens) if prefixes else None
        if settings and host_pages and not windowed:
            host = CacheLayout(groups, page, (host_pages,), 0, checkpoints=host_pages // 2 * (checkpoints > 0))
            settings = replace(settings, host=host)
        self.chunk, self.settings, self.beside, self.rng = chunk, settings, seed % 3 > 0, random.Random(seed)
        self.device = FakeDevice(self.layout, recurrent=checkpoints > 0)
        tiers = ssd is not None and settings is not None and settings.host is not None
        self.ssd = FakeSsd(self.device, random.Random(seed), ssd or 0.0) if tiers else None
        self.behind = SsdSettings(self.ssd, b"model", block_pages, lambda: self.ssd.now_s) if self.ssd else None
        self._begin()
        self.depth = depth
        self.pending: deque[StepPlan] = deque()
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[int]] = {}
        self.finished: dict[str, str] = {}
        self.count = 0

    def _begin(self) -> None:
        self.scheduler = Scheduler(
            self.layout, chunk_tokens=self.chunk, drafter=self.drafter, prefixes=self.settings, ssd=self.behind,
            memory=self.device if self.beside else None,
        )
        self.planned = self.run = 0
        self.sequences: list[Sequence] = []  # of this scheduler

    @precondition(lambda self: self.ssd)
    @rule()
    def restart(self) -> None:
        """All that runs comes to its end; what is left are the files."""
        self._finish()
        self.scheduler.close()
        self.device.__init__(self.layout, recurrent=self.device.recurrent)  # type: ignore[misc]
        self.ssd.planned = 0
        self._begin()

    @rule(prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=CONTEXT - 1), max_tokens=st.integers(0, CONTEXT),
          seed=st.integers(0, 9), stop=st.sets(st.integers(0, VOCAB - 1), max_size=2), data=st.data())
    def arrive(self, prompt: list[int], max_tokens: int, seed: int, stop: set[int], data: st.DataObject) -> None:
        if self.requests and data.draw(st.booleans()):  # it goes on from something that came before
            earlier = self.requests[data.draw(st.sampled_from(sorted(self.requests)))]
            known = [*earlier.prompt, *expected_output(earlier)]
            prompt = [*known[: data.draw(st.integers(1, len(known)))], *prompt[:8]][: CONTEXT - 1]
        ends = data.draw(st.sets(st.integers(1, len(prompt)), max_size=3))
        request = replace(
            make_request(f"r{self.count}", tuple(prompt), max_tokens, seed=seed, stop=tuple(stop)),
            message_ends=tuple(sorted(ends)), salt=data.draw(st.sampled_from(("", "", "", "other"))),
        )
        if data.draw(st.integers(0, 4)) == 0:
            request = replace(request, params=replace(request.params, cache_prompt=False))
        self.count += 1
        self.requests[request.id] = request
        self.outputs[request.id] = []
        if self.drafter:
            self.drafter.answers[request.id] = expected_output(request)
        self.scheduler.add(request)
        self.sequences.append(self.scheduler._by_request[request.id])

    @precondition(lambda self: len(self.finished) < len(self.requests))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        alive = sorted(set(self.requests) - set(self.finished))
        self.scheduler.cancel(data.draw(st.sampled_from(alive)))
        self._receive(self.scheduler.drain_events())

    @rule(times=st.integers(1, 12))
    def step(self, times: int) -> None:
        for _ in range(times):
            self._step()

    def _step(self) -> bool:
        if self.ssd:
            self.ssd.tick(self.run)
        if self.rng.random() < 0.3:
            self.device.land()
        plan = self.scheduler.plan() if len(self.pending) < self.depth else None
        if plan is not None:
            self.planned += 1
            if self.ssd:
                self.ssd.planned = self.planned
            assert sum(len(row.tokens) for row in plan.rows) <= self.chunk
            self.pending.append(plan)
        if self.pending and (plan is None or len(self.pending) == self.depth):
            self.run += 1
            self._receive(self.scheduler.commit(self.device.run(self.pending.popleft())))
            return True
        return plan is not None or bool(self.ssd and self.ssd.busy)

    def _receive(self, events: list[TokenEvent]) -> None:
        for event in events:
            assert event.request not in self.finished, "news after the end"
            self.outputs[event.request].extend(event.tokens)
            if event.finish_reason is not None:
                self.finished[event.request] = event.finish_reason
                self._check_output(event.request, event.finish_reason)

    def _check_output(self, name: str, reason: str) -> None:
        expected, got = expected_output(self.requests[name]), self.outputs[name]
        if reason == "cancelled":
            assert got == expected[: len(got)]
            return
        assert got == expected
        stops = (*self.requests[name].eos_ids, *self.requests[name].params.stop_token_ids)
        assert reason == ("stop" if got and got[-1] in stops else "length")

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        prefixes, slots = self.scheduler._prefixes, self.scheduler._running.slots
        held = [s.holding for s in self._holders() if s.holding is not None]
        leaving = list(prefixes.host._leaving) if prefixes.host else []
        leases = [*(holding.lease for holding in held), *(each.lease for each in leaving)]
        nodes = all_nodes(prefixes.cache)
        for group, pool in enumerate(prefixes.cache.pools):
            kept = [page for node in nodes for page in node.pages[group] if page != GONE]
            owned = [page for lease in leases for page in lease.private[group]]
            assert sorted((*kept, *owned, *pool._free)) == list(range(pool.total)), "a page without an owner, or with two"
            read = {page for lease in leases for page in lease.pages[group] if page != GONE}
            assert read <= {*kept, *owned}, "a sequence reads a page that is free"
        used = [holding.slot for holding in held]
        assert len(used) == len(set(used)) and len(used) + slots.free == slots.total
        kept_states = {checkpoint.slot for node in nodes for checkpoint in node.checkpoints.values()}
        given_back = prefixes.host._given_back if prefixes.host else []
        copied = {state.slot for state in (*given_back, *(state for each in leaving for state in each.states))}  # or evicted
        free = prefixes.cache.checkpoint_slots._free
        assert sorted((*(kept_states | copied), *free)) == list(range(self.layout.checkpoints)), "a checkpoint slot is lost"
        if prefixes.host:
            self._check_host(prefixes.host)

    def _check_host(self, host: HostTier) -> None:
        """Between plans nobody reads host memory: all of it is free, the index's, or on its way from the SSD."""
        cache, nodes = host.cache, all_nodes(host.cache)
        reads = host.ssd._reads if host.ssd else []
        saves = [*host.ssd._due, *host.ssd._planned, *host.ssd._saves] if host.ssd else []
        kept = [page for node in nodes for page in node.pages[0]]
        coming = [page for read in reads for page in read.lease.private[0]]
        assert sorted((*kept, *coming, *cache.pools[0]._free)) == list(range(cache.pools[0].total))
        states = {checkpoint.slot for node in nodes for checkpoint in node.checkpoints.values()}
        written = {state.slot for save in saves for state in save.states}  # and perhaps evicted meanwhile
        reserved = [read.slot for read in reads if read.slot is not None]
        slots = cache.checkpoint_slots
        assert sorted((*(states | written), *reserved, *slots._free)) == list(range(slots.total))
        assert {page for save in saves for page in save.held.pages[0]} <= set(kept), "what is being written was evicted"

    def _holders(self) -> list:  # type: ignore[type-arg]
        flying = [s for _, sequences in self.scheduler._flight for s in sequences]
        return list({id(s): s for s in [*self.scheduler._running.sequences.values(), *flying]}.values())

    def teardown(self) -> None:
        """Whatever is left runs to its end: nobody starves, and everything is given back."""
        if not hasattr(self, "scheduler"):
            return
        self._finish()

    def _finish(self) -> None:
        steps = 0
        while self._step() or self.scheduler.has_work:
            steps += 1
            assert steps < 20_000, "no end"
        assert not self.scheduler.has_work and set(self.finished) == set(self.requests)
        stats = self.scheduler.stats()
        began = sum(sequence.cached_tokens is not None for sequence in self.sequences) if self.settings else 0
        assert stats.prefix_hits_total + sum(count for _, count in stats.prefix_misses) == began, "each a hit or a miss"
        assert sum(count for _, count in stats.prefix_short) <= stats.prefix_hits_total
        assert stats.kv_pages_used == 0 and stats.slots_used == 0
        self.nothing_is_lost()


SchedulerMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestScheduler = SchedulerMachine.TestCase


@pytest.mark.long
def test_many_more_of_the_same() -> None:
    many = settings(max_examples=10_000, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(SchedulerMachine, settings=many)


def run_all(scheduler: Scheduler, device: FakeDevice) -> list[TokenEvent]:
    events = []
    while (plan := scheduler.plan()) is not None:
        events.extend(scheduler.commit(device.run(plan)))
    return events


def test_preemption_happens_and_changes_no_token() -> None:
    layout = CacheLayout((FULL,), 4, (12,), 4)
    scheduler, device = Scheduler(layout, chunk_tokens=16), FakeDevice(layout)
    requests = [make_request(f"r{i}", (i + 4,) * 5, 30, seed=i) for i in range(4)]
    for request in requests:
        scheduler.add(replace(request, eos_ids=()))
    outputs: dict[str, list[int]] = {r.id: [] for r in requests}
    for event in run_all(scheduler, device):
        outputs[event.request].extend(event.tokens)
    assert scheduler.stats().preemptions_total > 0
    assert outputs == {r.id: expected_output(replace(r, eos_ids=())) for r in requests}


def test_the_oldest_waits_for_a_page_no_longer_than_the_youngest_has_rows_in_flight() -> None:
    """Two plans ahead all sequences always have rows in flight: the youngest must be left out for once to give way."""
    layout = CacheLayout((FULL,), 4, (12,), 3)
    scheduler, device = Scheduler(layout, chunk_tokens=64), FakeDevice(layout)
    requests = [replace(make_request(f"r{i}", (i + 4,) * n, 30, seed=i), eos_ids=()) for i, n in enumerate((10, 8, 9))]
    for request in requests:
        scheduler.add(request)
    pending: deque[StepPlan] = deque()
    missed, most, ended = 0, 0, False
    while (plan := scheduler.plan()) is not None or pending:
        if plan is not None:
            missed = 0 if 0 in {row.sequence for row in plan.rows} else missed + 1
            most = max(most, 0 if ended else missed)
            pending.append(plan)
        if plan is None or len(pending) == 2:
            events = scheduler.commit(device.run(pending.popleft()))
            ended = ended or any(event.request == "r0" and event.finish_reason for event in events)
    assert scheduler.stats().preemptions_total > 0 and most == 1


def test_drafts_are_committed_together_and_left_out_for_want_of_pages() -> None:
    layout = CacheLayout((FULL,), 4, (6,), 2, True, 7)
    request = replace(make_request("r0", (5, 6, 7), 21), eos_ids=())
    drafter = ScriptedDrafter({"r0": expected_output(request)}, 7, VOCAB, chances=(1.0,))
    scheduler, device = Scheduler(layout, chunk_tokens=8, drafter=drafter), FakeDevice(layout)
    scheduler.add(request)
    events = run_all(scheduler, device)
    assert [t for event in events for t in event.tokens] == expected_output(request)
    assert max(len(event.tokens) for event in events) > 3 and events[-1].finish_reason == "length"
    # The older takes all pages for itself, its drafts none of the younger's.
    scheduler, device = Scheduler(layout, chunk_tokens=8, drafter=drafter), FakeDevice(layout)
    scheduler.add(replace(request, max_tokens=9))
    scheduler.add(replace(request, id="r1", max_tokens=9))
    drafter.answers["r1"] = drafter.answers["r0"]
    outputs: dict[str, list[int]] = {"r0": [], "r1": []}
    for event in run_all(scheduler, device):
        outputs[event.request].extend(event.tokens)
    assert outputs == dict.fromkeys(outputs, expected_output(request)[:9]) and scheduler.stats().preemptions_total == 0


@pytest.mark.parametrize(("decoding", "prompt"), [(1, 5), (2, 4), (3, 3), (5, 3)])
def test_one_plan_has_decoding_rows_beside_a_prompts_chunk(decoding: int, prompt: int) -> None:
    """Together as many as a chunk, but a prompt's half is sure."""
    layout = CacheLayout((FULL,), 4, (60,), 6)
    scheduler, device = Scheduler(layout, chunk_tokens=6), FakeDevice(layout)
    for number in range(decoding):
        scheduler.add(make_request(f"short {number}", (5,), 20))
    first = scheduler.plan()
    assert first is not None and all(row.samples for row in first.rows) and len(first.rows) == decoding
    scheduler.commit(device.run(first))
    scheduler.add(make_request("long", tuple(range(4, 24)), 5))
    mixed = scheduler.plan()
    assert mixed is not None
    assert [len(row.tokens) for row in mixed.rows] == [0] * decoding + [prompt]
    assert [row.samples for row in mixed.rows] == [True] * decoding + [False]


def test_cancel_frees_everything_before_the_next_plan() -> None:
    layout = CacheLayout((FULL,), 4, (20,), 2)
    scheduler, device = Scheduler(layout, chunk_tokens=64), FakeDevice(layout)
    for name in ("a", "b", "c"):
        scheduler.add(make_request(name, (5, 6, 7), 20))
    plan = scheduler.plan()
    assert plan is not None
    scheduler.commit(device.run(plan))
    scheduler.cancel("a")
    scheduler.cancel("nobody")
    assert [e.finish_reason for e in scheduler.drain_events()] == ["cancelled"]
    plan = scheduler.plan()
    assert plan is not None and {a.request.id for a in plan.admissions} == {"c"}


def test_a_result_of_another_step_is_refused() -> None:
    layout = CacheLayout((FULL,), 4, (20,), 2)
    scheduler, device = Scheduler(layout, chunk_tokens=64), FakeDevice(layout)
    scheduler.add(make_request("a", (5,), 9))
    plan = scheduler.plan()
    assert plan is not None
    result = device.run(plan)
    try:
        scheduler.commit(replace(result, step=7))
    except ValueError as error:
        assert "step 7" in str(error)
    else:
        raise AssertionError("the wrong result was taken")


def enqueue(machine: SchedulerMachine, request: Request) -> None:
    machine.count += 1
    machine.requests[request.id], machine.outputs[request.id] = request, []
    machine.scheduler.add(request)
    machine.sequences.append(machine.scheduler._by_request[request.id])


def talk(seed: int) -> FakeSsd:
    """Conversations in an engine that has too little of everything but disk, and is restarted now and then."""
    rng, machine = random.Random(seed), SchedulerMachine()
    page, recurrent = rng.randint(1, 5), rng.random() < 0.7
    machine.start(
        page=page, block_pages=rng.randint(1, 3), spare=rng.randint(0, 4), checkpoints=rng.randint(1, 4) * recurrent,
        depth=rng.randint(1, 3), ssd=rng.choice((0.0, 0.1)), drafts=0, host_pages=rng.randint(40 // page, 100 // page),
        windowed=False, chunk=rng.randint(4, 24), slots=rng.randint(1, 4), prefixes=True, split_tokens=rng.randint(1, 4),
        seed=seed,
    )
    for _ in range(60):
        known: list[int] = []
        if machine.finished and rng.random() < 0.8:
            earlier = machine.requests[rng.choice(sorted(machine.finished))]
            known = [*earlier.prompt, *expected_output(earlier)]
        prompt = (*known, *(rng.randrange(VOCAB) for _ in range(rng.randint(1, 8))))[: CONTEXT - 1]
        ends = (len(known),) if 0 < len(known) < len(prompt) else ()
        enqueue(machine, replace(make_request(f"r{machine.count}", prompt, rng.randint(1, 6)), message_ends=ends))
        for _ in range(rng.choice((1, 3, 20))):
            machine._step()
            machine.nothing_is_lost()
        if rng.random() < 0.1:
            alive = sorted(set(machine.requests) - set(machine.finished))
            if alive:
                machine.scheduler.cancel(rng.choice(alive))
                machine._receive(machine.scheduler.drain_events())
        if rng.random() < 0.05:
            machine.restart()
    machine.teardown()
    assert machine.ssd is not None
    return machine.ssd


@pytest.mark.parametrize("part", range(4))
def test_conversations_over_all_tiers(part: int) -> None:
    disks = [talk(seed) for seed in range(10 * part, 10 * part + 10)]
    assert sum(disk.reads for disk in disks) > 20 and sum(disk.failed for disk in disks) > 0


@pytest.mark.long
def test_many_conversations_over_all_tiers() -> None:
    for seed in range(1000, 4000):
        talk(seed)


def test_a_state_on_its_way_to_the_host_keeps_its_slot_until_it_is_there() -> None:
    """Of two sequences that end for one plan, with a slot for one state, the second must not take the first one's."""
    machine = SchedulerMachine()
    machine.start(
        page=4, block_pages=1, spare=0, checkpoints=1, depth=3, ssd=0.0, drafts=0, host_pages=3, windowed=False, chunk=8,
        slots=2, prefixes=True, split_tokens=1, seed=0,
    )

    def arrive(prompt: list[int], max_tokens: int, *, kept: bool) -> None:
        request = make_request(f"r{machine.count}", tuple(prompt), max_tokens)
        ends = (1,) if kept else ()
        enqueue(machine, replace(request, params=replace(request.params, cache_prompt=kept), message_ends=ends))

    arrive([0], 0, kept=True)
    arrive([0] * 5, 0, kept=False)
    machine.step(times=1)
    arrive([0, 0], 0, kept=False)
    arrive([0] * 12, 7, kept=False)
    known = [*machine.requests["r3"].prompt, *expected_output(machine.requests["r3"])]
    arrive([*known[:16], *[0] * 7], 3, kept=True)
    machine.step(times=5)
    arrive([30, 0, 14, 16, 0, 32, 17, 16, 34, 19, 34], 20, kept=True)
    machine.step(times=7)
    machine.teardown()
    assert machine.scheduler.stats().preemptions_total == 1
