"""The `openai` package as a client: sync, streamed, async."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.live_front import LiveFront

from headrace.config import ServerConfig
from headrace.engine.tokenizer import Tokenizer

openai = pytest.importorskip("openai")  # machines with a GPU may not have it

HI = [{"role": "user", "content": "hi"}]


def _client(front: LiveFront) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0)


@asynccontextmanager
async def _async_client(front: LiveFront, key: str = "none") -> AsyncIterator[openai.AsyncOpenAI]:
    client = openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key=key, max_retries=0)
    yield client
    await client.close()


async def test_chat(front: LiveFront) -> None:
    client = _client(front)
    answer = await asyncio.to_thread(
        client.chat.completions.create, model="scripted", messages=HI, logprobs=True, top_logprobs=2, n=2,
        extra_body={"top_k": 5, "chat_template_kwargs": {"enable_thinking": False}},
    )
    assert [choice.message.content for choice in answer.choices] == ["hello", "hello"]
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop" and answer.usage and answer.usage.total_tokens
    assert answer.choices[0].logprobs and answer.choices[0].logprobs.content
    assert bytes(answer.choices[0].logprobs.content[0].bytes or []) == b"hello"
    assert answer._request_id and front.engine.submitted[0].params.top_k == 5


async def test_chat_stream(front: LiveFront) -> None:
    def read() -> list[object]:
        return list(_client(front).chat.completions.create(
            model="scripted", messages=HI, stream=True, stream_options={"include_usage": True}))

    *chunks, last = await asyncio.to_thread(read)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello"
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].choices[0].finish_reason == "stop"
    assert last.choices == [] and last.usage.completion_tokens == 2


async def test_completions_and_models(front: LiveFront) -> None:
    async with _async_client(front) as client:
        answer = await client.completions.create(model="scripted", prompt=["a", "b"], echo=True, logprobs=2)
        assert [choice.text for choice in answer.choices] == ["ahello", "bhello"]
        assert answer.choices[1].logprobs and answer.choices[1].logprobs.tokens[:2] == ["b", "hello"]
        stream = await client.completions.create(model="scripted", prompt="a", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "hello"
        assert [model.id async for model in client.models.list()] == ["scripted"]
        assert (await client.models.retrieve("scripted")).id == "scripted"


async def test_many_streams_at_once(front: LiveFront) -> None:
    async with _async_client(front) as client:

        async def one() -> str:
            stream = await client.chat.completions.create(model="scripted", messages=HI, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert await asyncio.gather(*(one() for _ in range(40))) == ["hello"] * 40


async def test_errors_have_their_classes(tokenizer: Tokenizer) -> None:
    config = ServerConfig(api_key=("secret",))
    async with LiveFront(tokenizer, config, context=64, step_s=0.01) as front, _async_client(front, "secret") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").models.list()
        with pytest.raises(openai.NotFoundError, match="gpt-4o"):
            await client.chat.completions.create(model="gpt-4o", messages=HI)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "x" * 99}])
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
        front.engine.full = True
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="scripted", messages=HI)
        front.engine.full = False
        front.emits([70] * 30)
        stream = await client.chat.completions.create(model="scripted", messages=HI, stream=True)
        with pytest.raises(openai.APIError, match="SIGKILL"):
            async for _ in stream:
                front.engine.die()
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="scripted", messages=HI)
