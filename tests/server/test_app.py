"""The small routes, headers, errors of routing, and that whatever is sent never gives a 5xx."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.live_front import LiveFront

from headrace.engine.metrics import Metrics
from headrace.engine.tokenizer import Tokenizer
from headrace.server.app import ROUTES
from headrace.server.gate import plain_path
from headrace.types import EngineStats, RestoreTimes

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


def test_every_route_module_adds_routes() -> None:
    assert {"chat_completions", "completions", "detokenize", "health", "metrics", "models", "tokenize"} < set(ROUTES)
    assert all(callable(ROUTES[name].add_routes) for name in ROUTES)


async def test_models(front: LiveFront) -> None:
    listed = (await front.client.get("/v1/models")).json()
    [model] = listed["data"]
    assert listed["object"] == "list" and model["id"] == model["root"] == "scripted" and model["object"] == "model"
    assert model["owned_by"] == "headrace" and model["max_model_len"] == model["context_length"] == 512
    assert isinstance(model["created"], int)
    assert (await front.client.get("/v1/models/scripted")).json() == model
    assert (await front.client.get(front.url + "/v1//models/")).json() == listed


async def test_tokenize_and_back(front: LiveFront) -> None:
    text = "hello <|im_end|> the 🙂"
    body = front.ok(await front.post("/tokenize", {"prompt": text, "return_token_strs": True}))
    assert body["count"] == len(body["tokens"]) == len(body["token_strs"]) and body["max_model_len"] == 512
    assert body["token_strs"][0] == "hello" and "<|im_end|>" in body["token_strs"]
    assert front.ok(await front.post("/detokenize", {"tokens": body["tokens"]})) == {"prompt": text}
    shown = front.ok(await front.post("/detokenize", {"tokens": body["tokens"], "skip_special_tokens": True}))
    assert "<|im_end|>" not in shown["prompt"]
    assert front.ok(await front.post("/detokenize", {"tokens": []})) == {"prompt": ""}
    assert (await front.refused("/tokenize", {}))["param"] == "prompt"
    assert (await front.refused("/detokenize", {}))["param"] == "tokens"
    assert (await front.refused("/detokenize", {"tokens": [1, 99999]}))["param"] == "tokens"
    assert (await front.refused("/detokenize", {"tokens": [1, "x"]}))["param"] == "tokens[1]"


async def test_health_means_that_tokens_can_be_made(front: LiveFront) -> None:
    async def status() -> int:
        assert (await front.client.head("/health")).status_code == (await front.client.get("/ping")).status_code
        return (await front.client.get("/health")).status_code

    assert await status() == 200
    front.engine.stale_s = 5.0
    response = await front.client.get("/health")
    assert "5 s" in front.error(response, 503)["message"] and response.headers["retry-after"]
    front.engine.held = True
    waiting = asyncio.ensure_future(front.chat())
    while not front.engine.running:
        await asyncio.sleep(0.005)
    assert await status() == 200  # a long step
    front.engine.stale_s = 31.0
    assert await status() == 503
    front.engine.stale_s, front.engine.held = 0.0, False
    await waiting
    front.state.draining = True
    assert await status() == 503
    assert "shutting down" in front.error(await front.post(CHAT, {"messages": HI}), 503)["message"]
    front.state.draining = False
    front.engine.die()
    assert await status() == 503 and math.isinf(front.engine.heartbeat_age_s())


async def test_metrics(front: LiveFront) -> None:
    await front.chat()
    await front.stream(COMPLETIONS, prompt="x", stop="l")
    text = (await front.client.get("/metrics")).text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    for name in ("requests_running", "requests_waiting", "preemptions_total", "kv_pages_used", "prompt_tokens_total",
                 "generation_tokens_total", "cached_tokens_total", "steps_total", "slots_used"):
        assert f"headrace_{name}" in values
    assert float(values["headrace_kv_pages_total"]) == 1024
    assert float(values['headrace_requests_finished_total{reason="stop"}']) == 2
    assert float(values["headrace_time_to_first_token_seconds_count"]) == 2
    for name in ("prefix_hits_total", "kv_pages_cached", "checkpoints_used", "checkpoints_total"):
        assert float(values[f"headrace_{name}"]) == 0


def test_tokens_that_come_together_are_counted_one_by_one() -> None:
    """All but the first of a request, and the seconds that they took."""
    metrics = Metrics(EngineStats)
    for count, waited_s in ((1, 0.25), (4, 0.5), (0, 0.125)):
        metrics.tokens(count, waited_s)
    lines = metrics.exposition().decode().splitlines()
    assert {"headrace_inter_token_latency_seconds_count 5.0", "headrace_inter_token_latency_seconds_sum 0.75",
            'headrace_inter_token_latency_seconds_bucket{le="0.2"} 4.0'} <= set(lines)


def test_metrics_of_the_prefix_cache() -> None:
    misses = (("cold", 2), ("no_checkpoint", 1))
    times = RestoreTimes("ssd", 4.5, (0, 0, 2, 0, 0, 0, 0, 1, 0, 1))
    stats = EngineStats(
        prefix_hits_total=3, prefix_misses=misses, prefix_short=(("diverged", 2),), kv_cached_bytes=64, checkpoint_bytes=9,
        restores_total=7, ssd_hits_total=4, restore_times=(times,), ssd_bytes=8, ssd_misses=(("corrupt", 1),), ssd_waiting=6,
        ssd_dropped=(("queue_full", 5),),
    )
    lines = Metrics(lambda: stats).exposition().decode().splitlines()
    for line in ("headrace_prefix_hits_total 3.0", 'headrace_prefix_misses_total{reason="cold"} 2.0',
                 'headrace_prefix_misses_total{reason="no_checkpoint"} 1.0',
                 'headrace_prefix_short_hits_total{reason="diverged"} 2.0',
                 'headrace_prefix_restores_total{tier="host"} 7.0', 'headrace_prefix_restores_total{tier="ssd"} 4.0',
                 'headrace_prefix_restore_seconds_bucket{le="0.003",tier="ssd"} 0.0',
                 'headrace_prefix_restore_seconds_bucket{le="0.01",tier="ssd"} 2.0',
                 'headrace_prefix_restore_seconds_bucket{le="10.0",tier="ssd"} 3.0',
                 'headrace_prefix_restore_seconds_bucket{le="+Inf",tier="ssd"} 4.0',
                 'headrace_prefix_restore_seconds_count{tier="ssd"} 4.0',
                 'headrace_prefix_restore_seconds_sum{tier="ssd"} 4.5', "headrace_ssd_waiting 6.0",
                 'headrace_prefix_bytes{kind="entries",tier="ssd"} 8.0', 'headrace_ssd_misses_total{reason="corrupt"} 1.0',
                 'headrace_ssd_dropped_total{reason="queue_full"} 5.0',
                 'headrace_prefix_bytes{kind="pages",tier="device"} 64.0',
                 'headrace_prefix_bytes{kind="checkpoints",tier="device"} 9.0'):
        assert line in lines


def test_metrics_of_drafts() -> None:
    stats = EngineStats(drafted=(5, 3), accepted=(4, 0), draft_tokens_chosen=7, draft_gain=0.25, draft_break_even=0.5)
    lines = Metrics(lambda: stats).exposition().decode().splitlines()
    for line in ('headrace_drafted_tokens_total{position="1"} 5.0', 'headrace_drafted_tokens_total{position="2"} 3.0',
                 'headrace_accepted_tokens_total{position="1"} 4.0', 'headrace_accepted_tokens_total{position="2"} 0.0',
                 "headrace_draft_tokens_chosen 7.0", "headrace_draft_gain 0.25", "headrace_draft_break_even 0.5"):
        assert line in lines


async def test_routing_errors(front: LiveFront) -> None:
    assert "/v1/nothing" in front.error(await front.client.get("/v1/nothing"), 404)["message"]
    response = await front.client.get(CHAT)
    assert "GET" in front.error(response, 405)["message"] and response.headers["allow"] == "POST"
    for path in ("/docs", "/redoc", "/openapi.json", "/v1/completions/../../etc"):
        front.error(await front.client.get(path), 404)
    assert "access-control-allow-origin" not in (await front.client.get("/health", headers={"origin": "http://x"})).headers


async def test_request_ids(front: LiveFront) -> None:
    async def sent(value: str | bytes) -> str:
        response = await front.client.get("/version", headers={"x-request-id": value})
        return str(response.headers["x-request-id"])

    assert await sent("abc-1.2:3_4") == "abc-1.2:3_4"
    for odd in ("", "a b", "x" * 129, "é".encode(), '"<script>'):
        assert len(await sent(odd)) == 32
    streamed = await front.post(CHAT, {"messages": HI, "stream": True}, x_request_id="mine")
    assert streamed.headers["x-request-id"] == "mine"
    assert front.error(await front.post(CHAT, {}, x_request_id="mine"), 400)
    version = (await front.client.get("/version")).json()
    assert set(version) == {"version"} and version["version"]


async def test_an_unforeseen_failure_is_a_500_in_the_same_shape(front: LiveFront, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(front.engine, "submit", broken)
    for stream in (True, False):
        error = front.error(await front.post(CHAT, {"messages": HI, "stream": stream}), 500)
        assert error["type"] == "server_error" and "secret" not in error["message"]
    monkeypatch.undo()
    await front.alive()


async def test_a_model_without_a_template(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, has_template=False) as front:
        error = front.error(await front.post(CHAT, {"messages": HI}), 400)
        assert error["code"] == "no_chat_template" and "/v1/completions" in error["message"]
        await front.complete(prompt="x")


async def test_all_sampling_parameters_reach_the_engine(front: LiveFront) -> None:
    plain: dict[str, Any] = {
        "n": 2, "seed": 7, "temperature": 0.5, "top_k": 40, "top_p": 0.9, "min_p": 0.1, "presence_penalty": 0.5,
        "frequency_penalty": -0.5, "repetition_penalty": 1.1, "prompt_logprobs": 2, "min_tokens": 1, "max_tokens": 9,
        "ignore_eos": True, "cache_prompt": False, "cache_salt": "s",
    }
    lists = {"stop": ["a", "b"], "stop_token_ids": [5, 6], "logit_bias": {"5": 1}}
    for path, more, logprobs in ((CHAT, {"logprobs": True, "top_logprobs": 3}, 3), (COMPLETIONS, {"logprobs": 4}, 4)):
        front.ok(await front.post(path, {"messages": HI, "prompt": "x", **plain, **lists, **more}))
        request = front.engine.submitted[-2]
        got = {name: getattr(request.params, name) for name in (*plain, "stop", "stop_token_ids", "logit_bias", "logprobs")}
        assert got == {**plain, "stop": ("a", "b"), "stop_token_ids": (5, 6), "logit_bias": {5: 1.0}, "logprobs": logprobs}
        assert request.seed == 7 and request.eos_ids == ()


async def test_prompt_logprobs(front: LiveFront) -> None:
    body = await front.complete(prompt=["ab", "c"], prompt_logprobs=2)
    first, second = (choice["prompt_logprobs"] for choice in body["choices"])
    assert first[0] is None and second == [None]
    assert {entry["rank"] for entry in first[1].values()} == {1, 2}
    assert "b" in {entry["decoded_token"] for entry in first[1].values()}
    chat = await front.chat(prompt_logprobs=0)
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert (await front.refused(CHAT, {"messages": HI, "stream": True, "prompt_logprobs": 1}))["param"] == "prompt_logprobs"


async def test_the_shape_that_lm_eval_scores_with(front: LiveFront) -> None:
    prompts = [[10, 11, 12, 13], [20, 21], [30]]
    body = await front.complete(prompt=prompts, echo=True, logprobs=1, max_tokens=1, temperature=0, seed=1234)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    for prompt, choice in zip(prompts, body["choices"], strict=True):
        logprobs = choice["logprobs"]
        assert {len(values) for values in logprobs.values()} == {len(prompt) + 1}
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        for chosen, top in zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True):
            assert max(top.values()) == chosen
        assert choice["text"].startswith(front.tokenizer.decode(prompt, skip_special=False))
    assert body["usage"]["prompt_tokens"] == 7 and body["usage"]["completion_tokens"] == 3


async def test_what_is_too_long_for_the_event_loop_is_the_same(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, context=50_000) as front:
        text = "hello the inn " * 1000
        tokens = tokenizer.encode(text)
        assert front.ok(await front.post("/tokenize", {"prompt": text}))["tokens"] == tokens
        body = {"prompt": text, "echo": True, "logprobs": 0, "max_tokens": 1}
        whole = (await front.complete(**body))["choices"][0]
        assert list(front.engine.submitted[-1].prompt) == tokens
        assert whole["text"] == text + "hello" and len(whole["logprobs"]["tokens"]) == len(tokens) + 1
        [chunk] = await front.stream(COMPLETIONS, **body)
        assert chunk["choices"][0]["logprobs"] == whole["logprobs"]


async def test_a_long_prompt_does_not_stop_the_event_loop(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, context=2_000_000) as front:
        task = asyncio.ensure_future(front.complete(prompt="the quick brown fox " * 50_000, max_tokens=1))
        answered = 0
        while not task.done():
            assert (await front.client.get("/health")).status_code == 200
            answered += 1
        assert answered >= 3 and (await task)["usage"]["prompt_tokens"] > 500_000


@pytest.mark.parametrize(("path", "plain"), [
    ("/", "/"), ("//", "/"), ("/v1//models", "/v1/models"), ("/health/", "/health"), ("/v1/models/a/b", "/v1/models/a/b"),
])
def test_plain_path(path: str, plain: str) -> None:
    assert plain_path(path) == plain


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | st.integers(-3, 300) | st.integers() | FLOATS | st.text(max_size=12)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=6
)
MESSAGE = st.fixed_dictionaries({}, optional={
    "role": st.sampled_from(["user", "assistant", "system", "tool", "developer"]) | ANYTHING,
    "content": st.text(max_size=20) | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text()}), max_size=2)
    | ANYTHING,
    "tool_calls": ANYTHING, "reasoning_content": ANYTHING, "name": ANYTHING,
})
FIELDS: dict[str, st.SearchStrategy[Any]] = dict.fromkeys((
    "model", "stream", "stream_options", "n", "seed", "temperature", "top_k", "top_p", "min_p", "presence_penalty",
    "repetition_penalty", "logit_bias", "logprobs", "top_logprobs", "prompt_logprobs", "stop", "stop_token_ids", "min_tokens",
    "max_tokens", "max_completion_tokens", "ignore_eos", "cache_salt", "echo", "best_of", "suffix", "tools", "tool_choice",
    "response_format", "chat_template_kwargs", "reasoning_effort", "reasoning", "thinking", "continue_final_message",
    "add_generation_prompt", "tokens", "skip_special_tokens", "add_special_tokens",
), ANYTHING)
FIELDS["n"] = st.integers(1, 3) | ANYTHING
FIELDS["logit_bias"] = st.dictionaries(st.integers(0, 400).map(str), st.integers(-100, 100), max_size=3) | ANYTHING
FIELDS["stop"] = st.lists(st.text(max_size=3), max_size=3) | ANYTHING
FIELDS["stream_options"] = st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}) | ANYTHING
BODY = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, min_size=1, max_size=3) | ANYTHING,
     "prompt": st.text(max_size=20) | st.lists(st.integers(0, 300), max_size=4) | ANYTHING},
    optional=FIELDS,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(bodies=st.lists(BODY, min_size=1, max_size=6))
def test_no_body_gives_a_5xx(tokenizer: Tokenizer, bodies: list[dict[str, Any]]) -> None:
    async def send() -> None:
        async with LiveFront(tokenizer, context=64) as front:
            for body in bodies:
                for path in (CHAT, COMPLETIONS, "/tokenize", "/detokenize"):
                    response = await front.post(path, body)
                    assert response.status_code in (200, 400, 404), (path, body, response.text)
                    if response.status_code != 200:
                        front.error(response, response.status_code)
            await front.alive()
            assert front.engine.running == ()

    asyncio.run(send())
