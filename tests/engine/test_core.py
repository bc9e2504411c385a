"""The plain loop over the real scheduler and a runner that counts."""

from __future__ import annotations

import pytest
from tests.support.fake_engine_parts import CountingRunner, expected_tokens, make_engine, make_request

from headrace.config import EngineConfig
from headrace.engine.core import EngineCore, EngineFailedError
from headrace.errors import EngineUnavailableError
from headrace.types import TokenEvent


def core(runner: CountingRunner | None = None, *, max_seqs: int = 4) -> EngineCore:
    return make_engine(EngineConfig(max_seqs=max_seqs), runner or CountingRunner()).core


def run(engine: EngineCore) -> list[TokenEvent]:
    events = []
    while engine.has_work:
        events += engine.step()
    return events


def tokens_of(events: list[TokenEvent], id: str) -> tuple[int, ...]:
    return tuple(token for event in events if event.request == id for token in event.tokens)


def test_requests_run_to_their_ends_and_more_than_fit_wait():
    engine = core(max_seqs=4)
    requests = [make_request(f"r{i}", tuple(range(1, 2 + i)), max_tokens=5 + i, seed=100 * i) for i in range(10)]
    for request in requests:
        engine.add(request)
    events = run(engine)
    for request in requests:
        assert tokens_of(events, request.id) == expected_tokens(request)
    assert [e.finish_reason for e in events if e.finish_reason] == ["length"] * 10
    assert engine.stats().requests_running == engine.stats().kv_pages_used == 0


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


def test_an_id_in_use_is_refused_and_a_finished_one_may_come_again():
    engine = core()
    engine.add(make_request("a"))
    with pytest.raises(ValueError, match="'a'"):
        engine.add(make_request("a"))
    run(engine)
    engine.add(make_request("a"))
    assert tokens_of(run(engine), "a") == expected_tokens(make_request("a"))


def test_a_step_that_raises_ends_every_request_with_the_error():
    engine = core(CountingRunner(fail_at=2), max_seqs=2)
    for id in ("short", "long", "waiting"):
        engine.add(make_request(id, max_tokens=1 if id == "short" else 50))
    seen = engine.step() + engine.step()
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
