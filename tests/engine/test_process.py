"""The engine in its own process: tokens, cancellation, slow readers, queue limits, and every way to die."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import uvloop
from tests.support.fake_engine_parts import expected_tokens, make_request

from headrace.config import EngineConfig
from headrace.engine.process import EngineProcess
from headrace.errors import CheckpointError, EngineUnavailableError, HeadraceError, QueueFullError
from headrace.types import TokenEvent

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _engine_process_finds_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")


@asynccontextmanager
async def running(builder: str = "quick", *, max_seqs: int = 4, max_queue: int = 100) -> AsyncIterator[EngineProcess]:
    engine = await start(builder, max_seqs=max_seqs, max_queue=max_queue)
    try:
        yield engine
    finally:
        await engine.close()


async def start(
    builder: str, *, max_seqs: int = 4, max_queue: int = 100, on_progress: Callable[[int, int], None] | None = None
) -> EngineProcess:
    return await EngineProcess.start(
        "/no/model", EngineConfig(max_seqs=max_seqs), max_queue=max_queue, on_progress=on_progress,
        builder=f"tests.support.fake_engine_parts:{builder}",
    )


async def collect(stream: AsyncIterator[TokenEvent]) -> list[TokenEvent]:
    return [event async for event in stream]


def tokens_of(events: list[TokenEvent]) -> tuple[int, ...]:
    return tuple(token for event in events for token in event.tokens)


async def until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not so within {timeout_s} s"
        await asyncio.sleep(0.01)


# Serving


async def test_requests_get_their_tokens_and_progress_is_told():
    progress: list[tuple[int, int]] = []
    engine = await start("quick", on_progress=lambda done, total: progress.append((done, total)))
    assert progress == [(1, 2), (2, 2)]
    assert (engine.info.model, engine.info.max_seqs) == ("fake", 4)
    requests = [make_request(f"r{i}", tuple(range(1, 2 + i)), max_tokens=3 + i, seed=i) for i in range(12)]
    answers = await asyncio.gather(*(collect(engine.submit(r)) for r in requests))
    for request, events in zip(requests, answers, strict=True):
        assert tokens_of(events) == expected_tokens(request)
        assert [e.finish_reason for e in events[:-1]] == [None] * (len(events) - 1)
        assert events[-1].finish_reason == "length"
    await engine.close()


async def test_figures_and_heartbeats_come_while_idle_and_settle_at_once():
    async with running() as engine:
        await collect(engine.submit(make_request("a", max_tokens=50)))
        await until(lambda: engine.stats().generation_tokens_total == 50, 0.3)
        assert engine.stats().requests_running == engine.stats().kv_pages_used == 0
        ages = []
        for _ in range(30):
            await asyncio.sleep(0.05)
            ages.append(engine.heartbeat_age_s())
        assert max(ages) < 1.0


async def test_a_slow_reader_gets_all_tokens_in_few_events():
    async with running() as engine:
        request = make_request("slow", max_tokens=3000)
        stream = engine.submit(request)
        first = await anext(stream)
        await until(lambda: engine.stats().generation_tokens_total == 3000, 10)
        await asyncio.sleep(0.1)
        rest = await collect(stream)
        assert len(rest) <= 2
        assert tokens_of([first, *rest]) == expected_tokens(request)
        assert rest[-1].finish_reason == "length"


async def test_a_prompt_of_millions_of_tokens_passes():
    async with running() as engine:
        assert engine.info.kv_pages * engine.info.page_tokens < 2_100_000
        request = make_request("big", tuple(range(100_000, 2_200_000)))
        stream = engine.submit(request)
        with pytest.raises(StopAsyncIteration):  # the fake's cache cannot hold it: it answers, so it has read it all
            event = await anext(stream)
            assert event.finish_reason == "error" and "1 requests are unfinished" in (event.error or "")
            await anext(stream)


async def test_thousands_of_waiting_requests_cost_the_front_little():
    async with running("steady", max_queue=5000) as engine:
        await collect(engine.submit(make_request("warm")))
        prompt = tuple(range(1000, 4000))
        tracemalloc.start()
        try:
            streams = [engine.submit(make_request(f"r{i}", (*prompt, i), max_tokens=2)) for i in range(2000)]
            await until(lambda: engine.stats().requests_waiting > 1900, 20)
            assert tracemalloc.get_traced_memory()[0] < 2000 * 2048 < len(streams) * len(prompt) * 8 / 10
        finally:
            tracemalloc.stop()


async def test_a_burst_does_not_hold_up_the_event_loop():
    async with running("steady", max_queue=5000) as engine:
        requests = [make_request(f"r{i}", tuple(range(i, i + 1000))) for i in range(1000)]
        began_s = time.process_time()
        streams = [engine.submit(request) for request in requests]
        assert time.process_time() - began_s < 0.5
        assert len(streams) == 1000


async def test_an_engine_that_does_not_read_fills_no_memory():
    async with running(max_queue=5000) as engine:
        os.kill(engine.pid, signal.SIGSTOP)
        prompt = tuple(range(100_000, 500_000))
        with pytest.raises(QueueFullError, match="too busy"):
            for i in range(100):
                keep = engine.submit(make_request(f"r{i}", prompt))
                assert keep is not None
        assert 30 < i < 60
        os.kill(engine.pid, signal.SIGCONT)


# Cancelling


async def test_cancel_ends_the_stream_soon():
    async with running("steady") as engine:
        stream = engine.submit(make_request("a", max_tokens=4000))
        await anext(stream)
        engine.cancel("a")
        engine.cancel("unknown")
        events = await asyncio.wait_for(collect(stream), 2)
        assert events[-1].finish_reason == "cancelled"
        await until(lambda: engine.stats().requests_running == 0, 1)


async def leaves_by_cancellation(stream: AsyncIterator[TokenEvent]) -> None:
    task = asyncio.create_task(collect(stream))
    await asyncio.sleep(0.05)
    task.cancel()


async def leaves_by_closing(stream: AsyncIterator[TokenEvent]) -> None:
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]


async def leaves_by_forgetting(stream: AsyncIterator[TokenEvent]) -> None:
    await anext(stream)


@pytest.mark.parametrize("leave", [leaves_by_cancellation, leaves_by_closing, leaves_by_forgetting])
async def test_a_reader_that_goes_away_cancels_its_request(leave: Callable[[AsyncIterator[TokenEvent]], Awaitable[None]]):
    async with running("steady", max_seqs=1, max_queue=0) as engine:
        await leave(engine.submit(make_request("gone", max_tokens=4000)))
        await until(lambda: engine.stats().requests_running == 0 and engine.stats().steps > 0, 2)
        events = await collect(engine.submit(make_request("next")))  # there is room again
        assert tokens_of(events) == expected_tokens(make_request("next"))


# Limits


async def test_more_requests_than_it_holds_are_refused_until_one_ends():
    async with running("steady", max_seqs=2, max_queue=3) as engine:
        streams = [engine.submit(make_request(f"r{i}", max_tokens=4000)) for i in range(5)]
        with pytest.raises(QueueFullError, match="holds 5 requests") as refusal:
            engine.submit(make_request("one more"))
        assert refusal.value.retry_after_s >= 1
        engine.cancel("r4")
        assert (await collect(streams[4]))[-1].finish_reason == "cancelled"
        assert engine.submit(make_request("one more")) is not None
        with pytest.raises(QueueFullError):
            engine.submit(make_request("two more"))


async def test_an_id_in_use_is_refused():
    async with running("steady") as engine:
        stream = engine.submit(make_request("a", max_tokens=100))
        with pytest.raises(ValueError, match="'a'"):
            engine.submit(make_request("a"))
        await anext(stream)


# Dying


@pytest.mark.parametrize(
    ("builder", "kind", "says"),
    [
        ("no_checkpoint", CheckpointError, "^/no/model is not a checkpoint$"),
        ("no_sense", EngineUnavailableError, "ZeroDivisionError: a bug"),
        ("babbles", EngineUnavailableError, "sent what cannot be read: a frame claims to be"),
        ("not_there", EngineUnavailableError, "could not be built: AttributeError"),
    ],
)
async def test_an_engine_that_cannot_be_built_says_why(builder: str, kind: type[HeadraceError], says: str):
    with pytest.raises(kind, match=says) as failure:
        await start(builder)
    assert type(failure.value) is kind
    assert children() == []


def children() -> list[psutil.Process]:
    return [c for c in psutil.Process().children() if "headrace.engine.worker" in c.cmdline()]


async def test_an_engine_killed_while_loading_is_reported():
    task = asyncio.create_task(start("endless_build"))
    await until(lambda: bool(children()), 5)
    children()[0].kill()
    with pytest.raises(EngineUnavailableError, match="ended by signal SIGKILL.*memory"):
        await task


async def test_giving_up_while_loading_ends_the_process():
    loading = asyncio.Event()
    task = asyncio.create_task(start("endless_build", on_progress=lambda done, total: loading.set()))
    await asyncio.wait_for(loading.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() == []


async def test_a_killed_engine_ends_every_stream_and_refuses_more():
    engine = await start("steady")
    running = [asyncio.create_task(collect(engine.submit(make_request(f"r{i}", max_tokens=4000)))) for i in range(8)]
    unread = engine.submit(make_request("unread", max_tokens=4000))
    await until(lambda: engine.stats().requests_running == 4, 5)
    os.kill(engine.pid, signal.SIGKILL)
    for events in [*await asyncio.wait_for(asyncio.gather(*running), 2), await collect(unread)]:
        assert events[-1].finish_reason == "error"
        assert "SIGKILL" in (events[-1].error or "")
    assert "SIGKILL" in await engine.wait_dead()
    assert engine.heartbeat_age_s() == float("inf")
    with pytest.raises(EngineUnavailableError, match="SIGKILL"):
        engine.submit(make_request("late"))
    engine.cancel("r0")
    await engine.close()


async def test_a_failing_step_ends_every_stream_with_its_message_and_the_process():
    engine = await start("fails_at_step_3", max_seqs=2)
    streams = [engine.submit(make_request(f"r{i}", max_tokens=2 if i == 0 else 100)) for i in range(4)]
    first, *rest = await asyncio.gather(*map(collect, streams))
    assert first[-1].finish_reason == "length"
    for events in rest:
        assert events[-1].finish_reason == "error"
        assert "the device fell over" in (events[-1].error or "")
    assert await asyncio.wait_for(engine.wait_dead(), 2) == "the engine failed: RuntimeError: the device fell over"
    assert engine._child.returncode == 1


async def test_a_corrupt_frame_ends_the_engine_with_a_clear_error():
    engine = await start("steady")
    stream = engine.submit(make_request("a", max_tokens=4000))
    await anext(stream)
    assert engine._link._transport is not None
    engine._link._transport.write(b"\x04\0\0\0oops" + b"\xff" * 100_000)
    reason = "the engine failed: FrameError: a frame of 4 bytes cannot be read"
    assert (await asyncio.wait_for(engine.wait_dead(), 3)).startswith(reason)
    assert ((await collect(stream))[-1].error or "").startswith(reason)


async def test_a_stopped_engine_shows_in_the_heartbeat():
    async with running() as engine:
        os.kill(engine.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(1.6)
            assert engine.heartbeat_age_s() > 1.0
        finally:
            os.kill(engine.pid, signal.SIGCONT)
        await until(lambda: engine.heartbeat_age_s() < 0.5, 2)


async def test_terminal_signals_are_the_fronts_to_act_on():
    async with running("steady") as engine:
        request = make_request("a", max_tokens=20)
        stream = engine.submit(request)
        await anext(stream)
        os.kill(engine.pid, signal.SIGINT)
        os.kill(engine.pid, signal.SIGTERM)
        assert (await collect(stream))[-1].finish_reason == "length"


async def test_close_ends_the_process_gracefully():
    engine = await start("steady")
    stream = engine.submit(make_request("a", max_tokens=4000))
    await anext(stream)
    await asyncio.gather(engine.close(), engine.close())
    assert engine._child.returncode == 0
    assert not psutil.pid_exists(engine.pid)
    last = (await collect(stream))[-1]
    assert (last.finish_reason, last.error) == ("error", "the engine was closed")
    assert await engine.wait_dead() == "the engine was closed"


async def test_close_kills_a_process_that_hangs_in_a_step(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.engine.process.CLOSE_GRACE_S", 0.3)
    engine = await start("endless_step")
    stream = engine.submit(make_request("a"))
    await asyncio.sleep(0.1)
    await asyncio.wait_for(engine.close(), 2)
    assert not psutil.pid_exists(engine.pid)
    assert (await collect(stream))[-1].finish_reason == "error"


FRONT = """
import asyncio
from headrace.config import EngineConfig
from headrace.engine.process import EngineProcess
from tests.support.fake_engine_parts import make_request

async def main():
    loading = lambda done, total: print("loading", flush=True)
    engine = await EngineProcess.start("/no/model", EngineConfig(max_seqs=4), max_queue=1, on_progress=loading,
                                       builder="tests.support.fake_engine_parts:{builder}")
    stream = engine.submit(make_request("a"))
    await asyncio.sleep(0.3)
    print("stepping", flush=True)
    async for event in stream: pass

asyncio.run(main())
"""


@pytest.mark.parametrize(("builder", "word"), [("endless_step", "stepping"), ("endless_build", "loading")])
def test_a_killed_front_takes_the_engine_with_it(builder: str, word: str):
    """In the midst of a step, or of loading, that would last an hour."""
    front = subprocess.Popen([sys.executable, "-c", FRONT.format(builder=builder)], stdout=subprocess.PIPE, text=True)
    assert front.stdout is not None and front.stdout.readline().strip() == word
    (engine,) = psutil.Process(front.pid).children()
    front.kill()
    front.wait()
    gone, alive = psutil.wait_procs([engine], timeout=2)
    assert not alive


def test_it_runs_on_uvloop():
    async def serve() -> None:
        async with running() as engine:
            request = make_request("a", tuple(range(300_000)), max_tokens=1)
            small = make_request("b")
            assert tokens_of(await collect(engine.submit(small))) == expected_tokens(small)
            assert engine.submit(request) is not None

    uvloop.run(serve())
