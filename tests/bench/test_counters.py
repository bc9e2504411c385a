from __future__ import annotations

import asyncio

import pytest
from tests.support.live_front import LiveFront
from tests.support.raw_server import RawServer

from headrace.bench.counters import Watch, parse, read
from headrace.bench.exchange import Server
from headrace.engine.metrics import Metrics
from headrace.engine.tokenizer import Tokenizer
from headrace.types import EngineStats

VLLM = """\
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="a b} c"} 2.0
vllm:num_preemptions_total{engine="1",model_name="a b} c"} 3.0
vllm:num_preemptions_created{engine="0"} 1.79e+09
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:num_requests_running{engine="0"} 4.0
vllm:prompt_tokens_total{engine="0"} 1.2e+06
vllm:prefix_cache_hits_total{engine="0"} 640.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 7.0
process_resident_memory_bytes 1e9
"""


def test_headraces_counters() -> None:
    stats = EngineStats(
        requests_running=3, requests_waiting=1, kv_pages_used=5, kv_pages_total=20, preemptions_total=2, steps=9,
        prompt_tokens_total=100, generation_tokens_total=30, cached_tokens_total=16,
    )
    assert parse(Metrics(lambda: stats).exposition().decode()) == {
        "prompt_tokens": 100, "cached_tokens": 16, "generation_tokens": 30, "preemptions": 2, "steps": 9,
        "requests_running": 3, "requests_waiting": 1, "kv_used_share": 0.25,
    }  # fmt: skip


def test_vllms_counters() -> None:
    assert parse(VLLM) == {
        "preemptions": 5, "kv_used_share": 0.5, "requests_running": 4, "prompt_tokens": 1.2e6, "cached_tokens": 640,
        "accepted_tokens": 7,
    }  # fmt: skip


def test_an_alias_is_not_counted_twice_and_positions_are_added() -> None:
    drafted = 'headrace_drafted_tokens_total{position="%d"} %d\n'
    both = "headrace_preemptions_total 4\n" + drafted % (0, 6) + drafted % (1, 5)
    assert parse(VLLM + both)["preemptions"] == 4
    assert parse(both)["drafted_tokens"] == 11
    assert parse("") == parse("<html>no metrics here</html>") == {}


async def test_a_watch_tells_what_happened_meanwhile(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, step_s=0.02) as front:
        front.emits([70] * 30)
        await front.complete(prompt="hi", max_tokens=5, ignore_eos=True)
        watch = Watch(Server.at(front.url), 0.05)
        await watch.start()
        await asyncio.gather(*(front.complete(prompt="hi", max_tokens=30, ignore_eos=True) for _ in range(3)))
        found = await watch.stop()
        seen = len([task for task in asyncio.all_tasks() if task.get_coro().__name__ == "_sample"])  # type: ignore[union-attr]
    assert found is not None and seen == 0
    assert (found["generation_tokens"], found["preemptions"]) == (90, 0)
    assert found["samples"] >= 4
    assert found["requests_running"]["max"] == 3 and 1 < found["requests_running"]["mean"] <= 3
    assert found["kv_used_share"] == {"mean": 0, "max": 0}


@pytest.mark.parametrize("answer", [b"HTTP/1.1 404 Not Found\r\n\r\nno", b"HTTP/1.1 200 OK\r\n\r\n<html>", b"junk"])
async def test_a_server_without_counters(answer: bytes) -> None:
    async with RawServer(lambda head, body: [(0.0, answer)]) as server:
        assert await read(server.address) is None
        watch = Watch(server.address, 0.01)
        await watch.start()
        await asyncio.sleep(0.05)
        assert await watch.stop() is None
    assert len(server.requests) == 2, "it is not asked again"
