"""The loop, plain and overlapped, over the real scheduler and a runner that counts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from tests.support.fake_engine_parts import CountingRunner, DoneStep, expected_tokens, make_engine, make_request

from headrace.config import EngineConfig
from headrace.engine.core import EngineCore, EngineFailedError
from headrace.errors import EngineUnavailableError
from headrace.types import TokenEvent


@pytest.fixture(params=[1, 2, 3], ids=["plain", "overlapped", "deeper"])
def depth(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def core(runner: CountingRunner | None = None, *, max_seqs: int = 4, depth: int = 1) -> EngineCore:
    return make_engine(EngineConfig(max_seqs=max_seqs), runner or CountingRunner(), depth=depth).core


def run(engine: EngineCore) -> list[TokenEvent]:
    events = []
    while engine.has_work:
        events += engine.step()
    return events


def tokens_of(events: list[TokenEvent], id: str) -> tuple[int, ...]:
    return tuple(token for event in events if event.request == id for token in event.tokens)


def test_requests_run_to_their_ends_and_more_than_fit_wait(depth: int):
    engine = core(max_seqs=4, depth=depth)
    requests = [make_request(f"r{i}", tuple(range(1, 2 + i)), max_tokens=5 + i, seed=100 * i) for i in range(10)]
    for request in requests:
        engine.add(request)
    events = run(engine)
    for request in requests:
        assert tokens_of(events, request.id) == expected_tokens(request)
    assert [e.finish_reason for e in events if e.finish_reason] == ["length"] * 10
    assert engine.stats().requests_running == engine.stats().kv_pages_used == 0


def test_a_step_is_launched_before_the_one_before_it_is_waited_for(depth: int):
    runner = LoggingRunner()
    engine = core(runner, depth=depth)
    engine.add(make_request("a", max_tokens=6))
    run(engine)
    launches = [f"launch {n}" for n in range(6)]
    results = [f"result {n}" for n in range(6)]
    ahead = [what for n in range(depth - 1, 6) for what in (launches[n], results[n - depth + 1])]
    assert runner.log == launches[: depth - 1] + ahead + results[6 - depth + 1 :]


def test_what_ends_unforeseen_leaves_a_step_to_be_committed():
    engine = core(depth=2)
    engine.add(replace(make_request("a", max_tokens=50), eos_ids=(expected_tokens(make_request("a"))[2],)))
    events = []
    while not any(event.finish_reason for event in events):
        events += engine.step()
    assert tokens_of(events, "a") == expected_tokens(make_request("a"))[:3]
    assert engine.has_work and engine.stats().kv_pages_used > 0
    assert engine.step() == []
    assert not engine.has_work and engine.stats().kv_pages_used == engine.stats().slots_used == 0


def test_cancel_ends_a_running_and_a_waiting_request_at_the_next_step():
    engine = core(max_seqs=1)
    for id in ("runs", "waits"):
        engine.add(make_request(id, max_tokens=100))
    engine.step()
    engine.cancel("runs")
    engine.cancel("waits")
    engine.cancel("unknown")
    events = engine.step()
    assert {(e.request, e.finish_reason) for e in events} == {("runs", "cancelled"), ("waits", "cancelled")}
    assert not engine.has_work
    engine.cancel("runs")
    assert engine.step() == []


def test_an_id_in_use_is_refused_and_a_finished_one_may_come_again(depth: int):
    engine = core(depth=depth)
    engine.add(make_request("a"))
    with pytest.raises(ValueError, match="'a'"):
        engine.add(make_request("a"))
    run(engine)
    engine.add(make_request("a"))
    assert tokens_of(run(engine), "a") == expected_tokens(make_request("a"))


def test_a_step_that_raises_ends_every_request_with_the_error(depth: int):
    engine = core(CountingRunner(fail_at=4), max_seqs=2, depth=depth)
    for id in ("short", "long", "waiting"):
        engine.add(make_request(id, max_tokens=1 if id == "short" else 50))
    seen = [event for _ in range(4) for event in engine.step()]
    with pytest.raises(EngineFailedError, match="RuntimeError: the device fell over") as failure:
        engine.step()
    assert [e.request for e in seen if e.finish_reason == "length"] == ["short"]
    assert [(e.request, e.finish_reason) for e in failure.value.events] == [("long", "error"), ("waiting", "error")]
    assert all("the device fell over" in (e.error or "") for e in failure.value.events)


def test_a_broken_core_takes_nothing_more():
    engine = core(CountingRunner(fail_at=0))
    engine.add(make_request("a"))
    with pytest.raises(EngineFailedError):
        engine.step()
    assert not engine.has_work
    engine.cancel("a")
    for act in (engine.step, lambda: engine.add(make_request("b"))):
        with pytest.raises(EngineUnavailableError, match="the device fell over"):
            act()


class LoggingRunner(CountingRunner):
    """Logs what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    def launch(self, plan):
        self.log.append(f"launch {plan.step}")
        return LoggedStep(super().launch(plan), self.log)


@dataclass
class LoggedStep:
    done: DoneStep
    log: list[str]

    def result(self):
        result = self.done.result()
        self.log.append(f"result {result.step}")
        return result


class InterruptedRunner(CountingRunner):
    def launch(self, plan):
        raise KeyboardInterrupt


def test_an_interrupted_step_breaks_the_core():
    engine = core(InterruptedRunner())
    engine.add(make_request("a"))
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    with pytest.raises(EngineUnavailableError, match="KeyboardInterrupt"):
        engine.step()


def test_work_that_can_never_be_planned_is_an_error_and_not_an_endless_loop():
    engine = make_engine(EngineConfig(max_seqs=1), CountingRunner(), pages=1).core
    engine.add(make_request("too long", tuple(range(100))))
    with pytest.raises(EngineFailedError, match="plans nothing") as failure:
        run(engine)
    assert [e.request for e in failure.value.events] == ["too long"]


def test_close_closes_the_runner():
    runner = CountingRunner()
    engine = core(runner)
    engine.close()
    assert runner.closed
    with pytest.raises(EngineUnavailableError, match="closed"):
        engine.add(make_request("a"))
