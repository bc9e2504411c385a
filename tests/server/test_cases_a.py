"""Requests that broke other servers (group A of the project's collected cases): API and streaming. Named by case."""

from __future__ import annotations

import asyncio
import json
import math
import time
from typing import Any

import httpx
import pytest
from tests.support.byte_tokenizer import EOS
from tests.support.live_front import LiveFront, text_of

from headrace.config import ServerConfig
from headrace.engine.tokenizer import Tokenizer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["ok", ""], None, 5, {"a": 1}, [1, "x"], [[1], "x", [None]], [True]])
async def test_a01_empty_or_malformed_prompts_are_refused_by_name(front: LiveFront, prompt: object) -> None:
    error = await front.refused(COMPLETIONS, {"prompt": prompt})
    assert (error["type"], error["param"]) == ("invalid_request_error", "prompt")


@pytest.mark.parametrize("messages", [
    [], None, "hi", [1], [{}], [{"role": 5, "content": "x"}], [{"role": "user", "content": 5}],
])
async def test_a01_empty_or_malformed_messages_are_refused_by_name(front: LiveFront, messages: object) -> None:
    error = await front.refused(CHAT, {"messages": messages})
    assert error["type"] == "invalid_request_error" and error["param"].startswith("messages")


async def test_a02_scoring_a_prompt(front: LiveFront) -> None:
    body = await front.complete(prompt="yes", max_tokens=0, echo=True, logprobs=1)
    [choice] = body["choices"]
    assert choice["text"] == "yes" and choice["finish_reason"] == "length"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["y", "e", "s"] and logprobs["text_offset"] == [0, 1, 2]
    assert logprobs["token_logprobs"] == [None, -0.5, -0.5] and logprobs["top_logprobs"] == [None, {"e": -0.5}, {"s": -0.5}]
    assert body["usage"]["completion_tokens"] == 0 and body["usage"]["prompt_tokens"] == 3


async def test_a02_null_is_absent(front: LiveFront) -> None:
    front.emits([5] * 40)
    names = ("max_tokens", "n", "stop", "temperature", "logprobs", "logit_bias", "stream", "seed", "model")
    nulls = dict.fromkeys(names)
    body = await front.complete(prompt="yes", **nulls)
    assert body["usage"]["completion_tokens"] == 16  # the default of this route
    chat = await front.chat(**nulls)
    assert chat["usage"]["completion_tokens"] == 40


@pytest.mark.parametrize("n", [0, -1, 129, 9223372036854775807, 10**30, 1.5, "2"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a03_n_out_of_range(front: LiveFront, path: str, n: object) -> None:
    error = await front.refused(path, {"prompt": "x", "messages": HI, "n": n})
    assert error["param"] == "n"


async def test_a03_more_completions_than_the_server_can_hold(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, ServerConfig(max_queue=1)) as front:  # and 64 running
        error = await front.refused(COMPLETIONS, {"prompt": ["x"] * 33, "n": 2})
        assert "66" in error["message"] and "65" in error["message"] and front.engine.running == ()


async def test_a03_two_choices(front: LiveFront) -> None:
    front.engine.cached_tokens = 2
    body = await front.complete(prompt="abc", n=2, seed=1)
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["usage"]["prompt_tokens"] == 3 and body["usage"]["completion_tokens"] == 4
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert front.engine.submitted[0].seed != front.engine.submitted[1].seed


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a03_two_choices_streamed(front: LiveFront, path: str) -> None:
    chunks = await front.stream(path, prompt="abc", n=2, stream_options={"include_usage": True})
    assert text_of(chunks, 0) == text_of(chunks, 1) == "hello"
    ends = [choice["index"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(ends) == [0, 1]
    [usage] = [chunk["usage"] for chunk in chunks if chunk["usage"]]
    assert usage["prompt_tokens"] == len(front.engine.submitted[0].prompt) and usage["completion_tokens"] == 4


@pytest.mark.parametrize("bias", [
    {"99999999": 5}, {"abc": 1}, {"5": 1000}, {"-1": 1}, {"1.5": 1}, {"9" * 40: 1}, [1], {"5": "x"},
])
async def test_a04_logit_bias(front: LiveFront, bias: object) -> None:
    for path in (CHAT, COMPLETIONS):
        error = await front.refused(path, {"prompt": "x", "messages": HI, "logit_bias": bias})
        assert error["param"].startswith("logit_bias")


async def test_a04_a_valid_logit_bias_reaches_the_engine(front: LiveFront) -> None:
    await front.chat(logit_bias={"5": 1, "7": -100})
    assert front.engine.submitted[-1].params.logit_bias == {5: 1.0, 7: -100.0}


@pytest.mark.parametrize("prompt", [[[0, 999999999]], [[-1]], [0, 10**30], [[0], [267]]])
async def test_a06_token_ids_outside_the_vocabulary(front: LiveFront, prompt: object) -> None:
    assert (await front.refused(COMPLETIONS, {"prompt": prompt}))["param"] == "prompt"


@pytest.mark.parametrize("step_tokens", [1, 3])
async def test_a07_a_stop_string_over_many_tokens(tokenizer: Tokenizer, step_tokens: int) -> None:
    async with LiveFront(tokenizer, step_tokens=step_tokens) as front:
        front.emits([*front.bytewise("ABCDEFGHIJ and more"), EOS])
        for path in (CHAT, COMPLETIONS):
            chunks = await front.stream(path, prompt="x", stop=["DEFGHIJ"], max_tokens=100)
            assert text_of(chunks) == "ABC"
            [end] = [choice for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
            assert end["finish_reason"] == "stop" and end["stop_reason"] == "DEFGHIJ"
            whole = front.ok(await front.post(path, {"prompt": "x", "messages": HI, "stop": "DEFGHIJ", "max_tokens": 100}))
            choice = whole["choices"][0]
            assert (choice["text"] if "text" in choice else choice["message"]["content"]) == "ABC"
            assert whole["usage"]["completion_tokens"] == 10
        assert len(front.engine.cancelled) == 4 and front.engine.running == ()


async def test_a10_stop_shapes(front: LiveFront) -> None:
    for nothing in (None, "", []):
        assert (await front.chat(stop=nothing))["choices"][0]["message"]["content"] == "hello"
    for bad in ([""], ["x"] * 20, [5], {"a": 1}, 5):
        error = await front.refused(CHAT, {"messages": HI, "stop": bad})
        assert error["param"].startswith("stop")


@pytest.mark.parametrize("step_tokens", [1, 3])
async def test_a11_characters_over_many_tokens(tokenizer: Tokenizer, step_tokens: int) -> None:
    text = "삼겹살🙂👩‍👩‍👧 ď"
    async with LiveFront(tokenizer, step_tokens=step_tokens) as front:
        front.emits([*front.bytewise(text), EOS])
        for path in (CHAT, COMPLETIONS):
            chunks = await front.stream(path, prompt="x", max_tokens=100)
            assert text_of(chunks) == text and "\ufffd" not in json.dumps(chunks, ensure_ascii=False)


@pytest.mark.parametrize("logprob", [-0.5, -math.inf, math.nan, 0.0])
async def test_a13_logprobs_are_finite_or_null(front: LiveFront, logprob: float) -> None:
    front.engine.logprob = logprob
    front.emits([*front.bytewise("é"), EOS])
    response = await front.post(CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 5, "top_k": 1})
    body = json.loads(response.text, parse_constant=pytest.fail)
    content = body["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in content[:2]] == [[0xC3], [0xA9]] and content[0]["token"] == r"bytes:\xc3"
    assert all(len(entry["top_logprobs"]) == 5 for entry in content)
    assert len(content) == body["usage"]["completion_tokens"] == 3
    expected = None if math.isnan(logprob) else max(logprob, -9999.0)
    assert content[0]["logprob"] == expected
    legacy = await front.post(COMPLETIONS, {"prompt": "ab", "logprobs": 2, "echo": True})
    logprobs = json.loads(legacy.text, parse_constant=pytest.fail)["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [None] + [expected] * 4
    assert logprobs["text_offset"] == [0, 1, 2, 2, 3]


async def test_a13_a_streamed_answer_has_the_logprobs_of_a_whole_one(front: LiveFront) -> None:
    front.says("hello the inn")
    whole = (await front.chat(logprobs=True, top_logprobs=2))["choices"][0]["logprobs"]["content"]
    chunks = await front.stream(CHAT, logprobs=True, top_logprobs=2)
    parts = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    assert [entry for part in parts for entry in part["content"]] == whole
    given = {"prompt": "the hello", "echo": True, "logprobs": 3, "max_tokens": 20}
    legacy = (await front.complete(**given))["choices"][0]
    chunks = await front.stream(COMPLETIONS, **given)
    assert text_of(chunks) == legacy["text"] == "the hellohello the inn"
    for name, values in legacy["logprobs"].items():
        parts = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
        assert [value for part in parts for value in part[name]] == values


async def test_a13_top_logprobs_need_logprobs(front: LiveFront) -> None:
    for bad in ({"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 21}, {"logprobs": True, "top_logprobs": -1}):
        assert (await front.refused(CHAT, {"messages": HI, **bad}))["param"] == "top_logprobs"
    assert (await front.refused(COMPLETIONS, {"prompt": "x", "logprobs": 21}))["param"] == "logprobs"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("include", [True, False, None])
async def test_a14_the_usage_chunk(front: LiveFront, path: str, include: bool | None) -> None:
    options = {} if include is None else {"stream_options": {"include_usage": include}}
    chunks = await front.stream(path, prompt="abc", **options)
    if include:
        *rest, last = chunks
        assert last["choices"] == [] and last["usage"]["completion_tokens"] == 2
        assert all(chunk["usage"] is None and chunk["choices"] for chunk in rest)
    else:
        assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


async def test_a14_running_usage(front: LiveFront) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    front.emits([*front.bytewise("abc"), EOS])
    chunks = await front.stream(COMPLETIONS, prompt="xy", stream_options=options)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 4, 4]
    assert all(chunk["usage"]["prompt_tokens"] == 2 for chunk in chunks)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a14_the_shape_of_a_stream(front: LiveFront, path: str) -> None:
    front.says("hello in the inn")
    chunks = await front.stream(path, prompt="abc")
    assert len({(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert chunks[0]["object"] == ("chat.completion.chunk" if path == CHAT else "text_completion")
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons[-1] == "stop" and set(reasons[:-1]) == {None}
    if path == CHAT:
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
async def test_a16_a_client_that_leaves_frees_the_engine(
    tokenizer: Tokenizer, path: str, stream: bool, n: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "headrace")
    async with LiveFront(tokenizer, context=8192, step_s=0.01) as front:
        front.emits([5] * 5000)
        body = {"prompt": "x", "messages": HI, "max_tokens": 4096, "ignore_eos": True, "stream": stream, "n": n}
        await _leave_early(front, path, body)
        started = time.monotonic()
        while front.engine.running and time.monotonic() - started < 1.0:
            await asyncio.sleep(0.01)
        assert front.engine.running == () and len(front.engine.cancelled) == n
        assert max(front.engine.emitted.values()) < 200
        assert f"{path} aborted by client" in caplog.messages


async def _leave_early(front: LiveFront, path: str, body: dict[str, Any]) -> None:
    """After three chunks, or when all requests run."""
    if body["stream"]:
        async with front.client.stream("POST", path, json=body) as response:
            lines = response.aiter_lines()
            for _ in range(6):
                await anext(lines)
        return
    task = asyncio.ensure_future(front.post(path, body))
    while sum(front.engine.emitted.values()) < 3 or len(front.engine.emitted) < body["n"]:
        await asyncio.sleep(0.01)
    task.cancel()


async def test_a16_a_client_that_leaves_while_it_waits(front: LiveFront) -> None:
    front.engine.held = True
    task = asyncio.ensure_future(front.chat(stream=True))
    while not front.engine.running:
        await asyncio.sleep(0.01)
    task.cancel()
    while front.engine.running:
        await asyncio.sleep(0.01)
    assert len(front.engine.cancelled) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a18_a_prompt_as_long_as_the_context(tokenizer: Tokenizer, stream: bool) -> None:
    async with LiveFront(tokenizer, context=64) as front:
        for path, body, param in (
            (COMPLETIONS, {"prompt": [5] * 65}, "prompt"),
            (COMPLETIONS, {"prompt": [5] * 64}, "prompt"),
            (CHAT, {"messages": [{"role": "user", "content": "x" * 65}]}, "messages"),
        ):
            response = await front.post(path, {**body, "stream": stream})
            error = front.error(response, 400)
            assert error["code"] == "context_length_exceeded" and error["param"] == param and "64" in error["message"]
            assert response.headers["content-type"] == "application/json"
        assert front.engine.submitted == []


async def test_a19_max_tokens_is_clamped_to_the_context(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, context=64) as front:
        front.emits([5] * 100)
        for limit in (32000, 2**62):
            body = await front.complete(prompt=[5] * 60, max_tokens=limit)
            assert body["choices"][0]["finish_reason"] == "length" and body["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("limit", [0, -1, -(2**63), 2**64])
async def test_a19_max_tokens_that_cannot_work(front: LiveFront, limit: int) -> None:
    for path, name in ((CHAT, "max_tokens"), (CHAT, "max_completion_tokens"), (COMPLETIONS, "max_tokens")):
        error = await front.refused(path, {"prompt": "x", "messages": HI, name: limit})
        assert error["param"] == name
    assert (await front.refused(CHAT, {"messages": HI, "echo": True, "max_tokens": 0}))["param"] == "max_tokens"


async def test_a20_a_long_prompt_is_never_cut(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, context=64) as front:
        await front.refused(CHAT, {"messages": [{"role": "user", "content": "The code is 7. " + "x" * 200}]})
        text = "The code is 7. " + "x" * 10
        await front.complete(prompt=text)
        assert tokenizer.decode(front.engine.submitted[-1].prompt) == text


async def test_a21_harmless_fields_are_accepted(front: LiveFront) -> None:
    extras = {"store": True, "metadata": {"a": "b"}, "service_tier": "auto", "user": "u", "prompt_cache_key": "k",
              "safety_identifier": "s", "verbosity": "low", "parallel_tool_calls": False, "something_new": [1, {"x": None}],
              "modalities": ["text"], "response_format": {"type": "text"}, "function_call": "none", "tools": [],
              "functions": []}
    body = await front.chat(**extras, max_completion_tokens=1, max_tokens=9)
    assert body["usage"]["completion_tokens"] == 1
    await front.complete(prompt="x", **extras)


@pytest.mark.parametrize(("param", "value"), [
    ("audio", {"voice": "x", "format": "wav"}), ("modalities", ["text", "audio"]), ("functions", [{"name": "f"}]),
    ("function_call", {"name": "f"}), ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}),
    ("response_format", {"type": "json_object"}), ("guided_json", {}), ("guided_regex", "a+"), ("grammar", "root ::= x"),
])
async def test_a21_meanings_that_are_not_supported_are_refused(front: LiveFront, param: str, value: object) -> None:
    for path in (CHAT, COMPLETIONS):
        error = await front.refused(path, {"prompt": "x", "messages": HI, param: value})
        assert (error["param"], error["code"]) == (param, "unsupported_parameter")


async def test_a21_legacy_meanings(front: LiveFront) -> None:
    assert (await front.refused(COMPLETIONS, {"prompt": "x", "suffix": "y"}))["param"] == "suffix"
    assert (await front.refused(COMPLETIONS, {"prompt": "x", "best_of": 3}))["param"] == "best_of"
    await front.complete(prompt="x", suffix="", best_of=2, n=2)


async def test_a23_keys(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, ServerConfig(api_key=("first", "sécond"))) as front:
        paths = [("GET", "/v1/models"), ("GET", "/v1/models/scripted"), ("GET", "/metrics"), ("GET", "/version"),
                 ("GET", "/nowhere"), ("POST", CHAT), ("POST", COMPLETIONS), ("POST", "/tokenize"), ("POST", "/detokenize"),
                 ("GET", "/docs"), ("GET", "//health/x"), ("POST", "/v1//completions"), ("OPTIONS", CHAT)]
        wrong: list[dict[str, str | bytes]] = [
            {}, {"authorization": "Bearer wrong"}, {"authorization": "Basic first"}, {"authorization": "Bearer"},
            {"x-api-key": "firs"}, {"x-api-key": ""}, {"authorization": "first"}, {"authorization": b"Bearer \xff"},
        ]
        for method, path in paths:
            for headers in wrong:
                response = await front.client.request(method, front.url + path, headers=headers)
                error = front.error(response, 401)
                assert error["type"] == "authentication_error" and response.headers["www-authenticate"] == "Bearer"
        for path in ("/health", "/ping", "//health/"):
            assert (await front.client.get(front.url + path)).status_code == 200
        right: list[dict[str, str | bytes]] = [
            {"authorization": "Bearer first"}, {"authorization": "bearer  first"}, {"x-api-key": "first"},
            {"x-api-key": "sécond".encode()},
        ]
        for headers in right:
            assert (await front.client.get("/v1/models", headers=headers)).status_code == 200
            response = await front.client.post(CHAT, json={"messages": HI, "max_tokens": 1}, headers=headers)
            assert response.status_code == 200
        assert len(front.engine.submitted) == len(right)
        salts = [request.salt for request in front.engine.submitted]
        assert salts[0] and salts[:3] == [salts[0]] * 3 and salts[3] != salts[0]
        assert not any("first" in salt for salt in salts), "a key is in no message"


@pytest.mark.parametrize("raw", [
    b"{", b"", b"\xff\xfe", b'{"messages": "\xff"}', b"[]", b"null", b"nul", b'{"a":' * 5000, b"[" * 10**6,
    b'{"messages":[{"role":"user","content":' + b"[" * 10**5, b'{"temperature": NaN}', b'{"temperature": 1e999}',
    b'{"messages":[{"role":"user","content":"\\ud800"}]}',
])
async def test_a24_bodies_that_are_not_a_request(front: LiveFront, raw: bytes) -> None:
    for path in (CHAT, COMPLETIONS, "/tokenize", "/detokenize"):
        response = await front.client.post(path, content=raw, headers={"content-type": "application/json"})
        front.error(response, 400)
    await front.alive()


async def test_a24_content_types(front: LiveFront) -> None:
    raw = json.dumps({"messages": HI, "max_tokens": 1}).encode()
    for wrong in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        error = front.error(await front.client.post(CHAT, content=raw, headers={"content-type": wrong}), 415)
        assert wrong.partition(";")[0] in error["message"]
    for right in ("application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"):
        assert (await front.client.post(CHAT, content=raw, headers={"content-type": right})).status_code == 200
    assert (await front.client.post(CHAT, content=raw)).status_code == 200


async def test_a24_a_body_over_the_cap(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, ServerConfig(max_body_bytes=10_000)) as front:
        huge = {"messages": [{"role": "user", "content": "x" * 10_001}]}
        assert "10000 bytes" in (await front.refused(CHAT, huge, 413))["message"]

        async def parts() -> Any:
            for _ in range(30):
                yield b" " * 1000

        response = await front.client.post(CHAT, content=parts(), headers={"content-type": "application/json"})
        front.error(response, 413)
        await front.alive()


async def test_a24_bodies_in_flight_share_a_bound(tokenizer: Tokenizer) -> None:
    """Unfinished bodies hold at most eight times the cap; a ninth of full size is turned away, and room comes back."""
    async with LiveFront(tokenizer, ServerConfig(max_body_bytes=100_000)) as front:
        finish = asyncio.Event()

        async def slow() -> Any:
            yield b" " * 99_000
            await finish.wait()
            yield json.dumps({"messages": HI, "max_tokens": 1}).encode()

        headers = {"content-type": "application/json"}
        tasks = [asyncio.ensure_future(front.client.post(CHAT, content=slow(), headers=headers)) for _ in range(8)]
        ninth = b" " * 99_000 + json.dumps({"messages": HI, "max_tokens": 1}).encode()
        while (answer := await front.client.post(CHAT, content=ninth, headers=headers)).status_code == 200:
            await asyncio.sleep(0.01)  # until the eight have arrived
        assert front.error(answer, 429)["type"] == "rate_limit_error" and answer.headers["retry-after"]
        finish.set()
        assert {answer.status_code for answer in await asyncio.gather(*tasks)} == {200}
        for _ in range(9):
            assert (await front.client.post(CHAT, content=ninth, headers=headers)).status_code == 200


async def test_a25_tools_that_may_not_be_called(front: LiveFront) -> None:
    tools = [{"type": "function", "function": {"name": "ls", "parameters": {}}}]
    body = await front.chat(tools=tools, tool_choice="none")
    assert "tool_calls" not in body["choices"][0]["message"]
    named = {"type": "function", "function": {"name": "ls"}}
    for choice in ({}, {"tool_choice": "auto"}, {"tool_choice": "required"}, {"tool_choice": named}):
        assert (await front.refused(CHAT, {"messages": HI, "tools": tools, **choice}))["param"] == "tools"
    assert (await front.refused(CHAT, {"messages": HI, "tool_choice": "required"}))["param"] == "tool_choice"


async def test_a26_the_name_of_the_model(front: LiveFront) -> None:
    for path in (CHAT, COMPLETIONS, "/tokenize"):
        error = await front.refused(path, {"model": "gpt-4o", "messages": HI, "prompt": "x"}, 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model") and "gpt-4o" in error["message"]
    for fine in ("scripted", "", None):
        assert (await front.chat(model=fine))["model"] == "scripted"
    front.error(await front.client.get("/v1/models/gpt-4o"), 404)


async def test_a26_a_long_wrong_name_is_not_sent_back_whole(front: LiveFront) -> None:
    error = await front.refused(CHAT, {"model": "m" * 1_000_000, "messages": HI}, 404)
    assert len(error["message"]) < 2100 and "scripted" in error["message"]


async def test_a26_a_served_name(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, ServerConfig(served_name="org/Model-1")) as front:
        assert (await front.chat(model="org/Model-1"))["model"] == "org/Model-1"
        assert (await front.client.get("/v1/models/org/Model-1")).json()["id"] == "org/Model-1"
        await front.refused(CHAT, {"model": "scripted", "messages": HI}, 404)


async def test_a_name_that_json_cannot_carry_is_made_printable(tokenizer: Tokenizer) -> None:
    async with LiveFront(tokenizer, ServerConfig(served_name="m\udcff\n")) as front:
        assert (await front.chat())["model"] == "m\ufffd\ufffd"
        assert (await front.client.get("/v1/models")).json()["data"][0]["id"] == "m\ufffd\ufffd"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_full_queue_turns_the_whole_request_away(tokenizer: Tokenizer, stream: bool) -> None:
    async with LiveFront(tokenizer, capacity=2) as front:
        front.engine.held = True
        response: httpx.Response = await front.post(CHAT, {"messages": HI, "stream": stream, "n": 3})
        assert front.error(response, 429)["code"] == "queue_full" and response.headers["retry-after"] == "7"
        assert len(front.engine.cancelled) == 2 and front.engine.running == ()
        front.engine.held = False
        await front.chat(n=2)
