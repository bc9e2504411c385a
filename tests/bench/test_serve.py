"""`headrace bench serve` against a front on a scripted engine."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.support.live_front import LiveFront
from tests.support.raw_server import DONE, STREAM, RawServer, text_event, usage_event

from headrace.bench.scenarios.serve import run
from headrace.bench.serve_settings import Settings, ids_within
from headrace.engine.tokenizer import Tokenizer
from headrace.errors import ConfigError, HeadraceError
from headrace.types import Request

SMALL = Settings(requests=6, warmup=2, input_tokens="3-6", output_tokens="8", token_ids="70-90", sample_s=0.05)


async def measure(url: str, settings: Settings) -> tuple[list[dict[str, Any]], str]:
    """The runs' figures, and what was printed."""
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    results = await asyncio.to_thread(run, replace(settings, url=url), console)
    json.dumps(results, allow_nan=False)
    return results["runs"], printed.getvalue()


async def test_users_and_rates_are_runs_of_their_own(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, step_s=0.01, step_tokens=2) as front:
        front.emits([80] * 8)
        front.engine.cached_tokens = 1
        runs, printed = await measure(front.url, replace(SMALL, concurrency=(1, 3), rate=(50.0,), goodput_ttft_ms=5000.0))
        submitted = front.engine.submitted
    assert [(each["concurrency"], each["rate"]) for each in runs] == [(1, None), (3, None), (None, 50.0)]
    for each in runs:
        assert each["requests"] == each["answered"] == 6 and each["failures"] == {} and each["warmup_failures"] == 0
        assert each["completion_tokens"] == 48 == each["server"]["generation_tokens"], "of the run alone, without its warm-up"
        assert each["tokens_per_chunk"] == 2 and each["itl_ms"]["count"] == 6 * 3
        assert each["cached_tokens"] == 6 and each["shorter_than_asked"] == 0
        assert 9.9 < each["ttft_ms"]["p50"] < 200 and 9 < each["itl_ms"]["p50"] < 100
        assert each["tpot_ms"]["mean"] * 7 == pytest.approx(each["itl_ms"]["mean"] * 3)
        assert each["goodput"]["share"] == 1
        assert each["client"]["loop_lag_ms"]["count"] > 0 and 0 < each["client"]["cpu_share"]
        assert "raw" not in each
    assert [each["most_at_once"] for each in runs[:2]] == [1, 3]
    assert runs[2]["client"]["sent_late_ms"]["count"] == 6 and runs[0]["client"]["sent_late_ms"] is None
    assert len(submitted) == 1 + 3 * (2 + 6) and len({request.prompt for request in submitted}) == len(submitted)
    assert all(request.params.ignore_eos for request in submitted)
    for words in ("1 user ", "3 users", "50/s", "6 of 6", "first token (TTFT)", "100%", "preemptions"):
        assert words in printed
    assert "counted" not in printed


async def test_token_ids_are_those_that_the_server_has(tokenizer: Tokenizer) -> None:
    """Fewer than are usual: the range is said, and is the first half's end on."""
    async with LiveFront(tokenizer) as front:
        front.emits([80] * 8)
        least, most = tokenizer.vocab_size // 2, tokenizer.vocab_size - 1
        for name in (None, front.state.model):
            [run], printed = await measure(front.url, replace(SMALL, token_ids=None, model=name))
            assert run["answered"] == 6 and f"token ids {least}-{most}: the model has {most + 1}" in printed
        assert {token for request in front.engine.submitted for token in request.prompt} <= set(range(least, most + 1))
    assert [ids_within(size) for size in (2, 302, 1500, 32_000, 248_320)] == [
        "1-1", "151-301", "750-1499", "1000-31999", "1000-31999"
    ]


async def test_the_same_seed_asks_the_same(tokenizer: Tokenizer) -> None:
    async def prompts(settings: Settings) -> set[tuple[int, ...]]:
        async with LiveFront(tokenizer) as front:
            await measure(front.url, settings)
            return {tuple(request.prompt) for request in front.engine.submitted}

    shared = replace(SMALL, workload="shared-prefix", prefix_tokens=40)
    first = await prompts(shared)
    assert first == await prompts(shared) == await prompts(replace(shared, concurrency=(1,)))
    assert not first & await prompts(replace(shared, seed=1))
    prefixes = Counter(prompt[:40] for prompt in first)
    assert sorted(prefixes.values()) == [1, 2, 6], "the first try's and the warm-up's are others than the run's"


async def test_failures_are_counted_by_kind(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, step_s=0.01) as front:
        front.emits([80] * 8)

        def script(request: Request) -> Sequence[int]:
            number = len(front.engine.submitted)
            if number == 5:
                asyncio.get_running_loop().call_later(0.035, front.engine.fail, request.id, "page fault")
            front.engine.full = number == 7
            return front.tokens

        front.engine._script = script
        runs, printed = await measure(front.url, SMALL)
    (found,) = runs
    assert found["answered"] == 3 and found["failures"] == {"error event": 1, "http 429": 2}
    assert found["completion_tokens"] == 24
    assert "3 of 6" in printed and "failed: http 429" in printed and "page fault" in printed


async def test_a_server_that_gives_up_leaves_the_figures_until_then() -> None:
    models = b'HTTP/1.1 200 OK\r\n\r\n{"data": [{"id": "m"}]}'

    def script(head: str, body: bytes) -> list[tuple[float, bytes]]:
        if head.startswith("GET"):
            return [(0.0, models)]
        if sum(head.startswith("POST") for head, _ in server.requests) > 1 + 6:
            return [(0.0, b"HTTP/1.1 503 Busy\r\n\r\nbusy")]
        return [(0.0, STREAM + text_event("x", "stop") + usage_event(1, 8) + DONE)]

    async with RawServer(script) as server:
        (first, second), printed = await measure(server.address.url, replace(SMALL, warmup=0, concurrency=(1, 2)))
    assert (first["answered"], second["answered"]) == (6, 0) and second["failures"] == {"http 503": 6}
    assert "0 of 6" in printed and "busy" in printed and first["server"] is None


async def test_answers_that_stop_early_and_raw_times(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer) as front:
        runs, printed = await measure(front.url, replace(SMALL, ignore_eos=False, raw=True, concurrency=(2,)))
    (found,) = runs
    assert found["shorter_than_asked"] == 6 and "shorter than asked" in printed
    assert len(found["raw"]) == 6 and {each["finish_reason"] for each in found["raw"]} == {"stop"}
    assert all(each["sent_s"] <= each["chunks_s"][0] <= each["ended_s"] for each in found["raw"])


async def test_chats_of_several_turns(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, context=4096) as front:
        settings = replace(SMALL, workload="chats", turns=2, requests=3, input_tokens="15", prefix_tokens=10, concurrency=(3,))
        runs, printed = await measure(front.url, settings)
        prompts = [front.tokenizer.decode(request.prompt) for request in front.engine.submitted]
    (found,) = runs
    assert found["requests"] == found["answered"] == 6
    assert [each["count"] for each in found["ttft_ms_by_turn"]] == [3, 3] and "of turn 2" in printed
    assert sum("hello" in prompt for prompt in prompts) == 5, "second turns have the first's answer, the warm-up's too"


async def test_prompts_of_a_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "the in"}\n{"messages": [{"role": "user", "content": "an"}], "seed": 3}\n')
    async with LiveFront(tokenizer, context=4096) as front:
        body = '{"temperature": 0, "seed": 2}'
        await measure(front.url, replace(SMALL, workload="text", prompts=str(file), requests=3, warmup=1, body=body))
        tried, warm_up, *asked = front.engine.submitted
    assert [request.params.seed for request in asked] == [2, 3, 2] and {request.params.temperature for request in asked} == {0}
    assert [tokenizer.decode(request.prompt)[:6] for request in asked[::2]] == ["the in"] * 2
    assert not any(request.params.ignore_eos for request in asked) and len(warm_up.prompt) > 64


async def test_a_server_that_reports_no_usage_is_an_error() -> None:
    models = b'HTTP/1.1 200 OK\r\n\r\n{"data": [{"id": "m"}]}'

    def script(head: str, body: bytes) -> list[tuple[float, bytes]]:
        return [(0.0, models if head.startswith("GET") else STREAM + text_event("x", "stop") + DONE)]

    async with RawServer(script) as server:
        with pytest.raises(HeadraceError, match="no usage: .*include_usage"):
            await measure(server.address.url, SMALL)


async def test_a_refused_model_and_a_missing_key_are_told(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer) as front:
        with pytest.raises(HeadraceError, match="http 404: .*nonesuch"):
            await measure(front.url, replace(SMALL, model="nonesuch"))
        await front.alive()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"requests": 0}, "--requests must be more than 0"),
        ({"concurrency": (4, 0)}, "--concurrency must be"),
        ({"rate": (-1.0,)}, "--rate must be"),
        ({"warmup": -1}, "--warmup must be"),
        ({"workload": "shared-prefix"}, "--prefix-tokens"),
        ({"workload": "text"}, "--prompts FILE"),
        ({"prompts": "x"}, "--workload text"),
        ({"input_tokens": "x"}, "--input-tokens must be"),
        ({"output_tokens": "9-1"}, "--output-tokens must be"),
        ({"token_ids": "0"}, "--token-ids must be"),
        ({"body": "{"}, "--body: "),
        ({"body": "[]"}, "--body must be"),
        ({"body": '{"stream": false}'}, "--body must be a JSON object without"),
        ({"url": "ftp://x"}, "--url must look like"),
    ],
)
def test_settings_that_cannot_work(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(replace(SMALL, **changes), Console(file=io.StringIO()))
