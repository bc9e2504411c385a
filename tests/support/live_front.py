"""A front on a scripted engine, served on a free port by the test's own event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import httpx
from tests.support.byte_tokenizer import EOS
from tests.support.scripted_engine import ScriptedEngine

from headrace.config import ServerConfig
from headrace.engine.chat import ChatTemplate
from headrace.engine.tokenizer import Tokenizer
from headrace.server.app import create_app
from headrace.server.front import Front
from headrace.server.http_server import HttpServer, http_config
from headrace.server.listen import bind, url
from headrace.types import Request


class LiveFront:
    """An async context manager. The engine says "hello", unless told otherwise by `says` or `emits`.

    `client` has the server's address and no key. `context`: the engine's.
    """

    def __init__(
        self, tokenizer: Tokenizer, config: ServerConfig | None = None, *, keep_alive_s: float = 5.0, context: int = 512,
        has_template: bool = True, **engine: Any,
    ) -> None:
        self.tokenizer = tokenizer
        self.config = replace(config or ServerConfig(), host="127.0.0.1", port=0)
        self.tokens: Sequence[int] = ()
        self.engine = ScriptedEngine(self._script, **engine)
        self.engine.info = replace(self.engine.info, context=context, vocab_size=tokenizer.vocab_size)
        template = ChatTemplate(tokenizer.chat_template or "", tokenizer) if has_template else None
        self.app = create_app(self.engine, tokenizer, template, self.config, keep_alive_s=keep_alive_s)
        self.says("hello")

    def _script(self, request: Request) -> Sequence[int]:
        return self.tokens

    @property
    def state(self) -> Front:
        front: Front = self.app.state.front
        return front

    def says(self, text: str) -> None:
        """Every answer is `text`, then EOS."""
        self.tokens = (*self.tokenizer.encode(text, add_special=False), EOS)

    def emits(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens)

    def bytewise(self, text: str) -> list[int]:
        """Tokens of single bytes."""
        of_byte = {self.tokenizer.token_bytes(token): token for token in range(self.tokenizer.vocab_size)}
        return [of_byte[bytes([byte])] for byte in text.encode()]

    async def __aenter__(self) -> LiveFront:
        sock = bind("127.0.0.1", 0)
        self.url = url("127.0.0.1", sock)
        self._server = HttpServer(http_config(self.app))
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[sock]))
        while not self._server.started:
            await asyncio.sleep(0.001)
        self.client = httpx.AsyncClient(base_url=self.url, timeout=20, limits=httpx.Limits(max_connections=None))
        return self

    async def __aexit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.engine.close()
        await self.client.aclose()
        self._serving.cancel()  # a graceful end would cost every test a fifth of a second
        await asyncio.wait((self._serving,))
        for listener in self._server.servers:
            listener.close()

    async def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        return await self.client.post(path, json=body, headers={name.replace("_", "-"): each for name, each in headers.items()})

    async def complete(self, **body: object) -> dict[str, Any]:
        return self.ok(await self.post("/v1/completions", body))

    async def chat(self, **body: object) -> dict[str, Any]:
        return self.ok(await self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], **body}))

    def ok(self, response: httpx.Response) -> dict[str, Any]:
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        return body

    async def refused(self, path: str, body: object, status: int = 400) -> dict[str, Any]:
        """The error of a request that must fail, after which the server must still answer."""
        response = await self.post(path, body)
        error = self.error(response, status)
        await self.alive()
        return error

    def error(self, response: httpx.Response, status: int) -> dict[str, Any]:
        assert response.status_code == status, (response.status_code, response.text)
        assert set(response.json()) == {"error"} and response.headers["x-request-id"]
        error: dict[str, Any] = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"]
        return error

    async def alive(self) -> None:
        await self.chat(max_tokens=1)

    async def stream(self, path: str, **body: object) -> list[dict[str, Any]]:
        """Chunks of a stream that ends with [DONE]."""
        if path.endswith("chat/completions"):
            body = {"messages": [{"role": "user", "content": "hi"}], **body}
        response = await self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        chunks, done = events(response.text)
        assert done
        return chunks


def events(text: str) -> tuple[list[dict[str, Any]], bool]:
    """The JSON of an event stream's data, without comments, and whether [DONE] came last."""
    blocks = text.split("\n\n")
    assert blocks.pop() == "", "the last event is cut"
    data = [block.removeprefix("data: ") for block in blocks if not block.startswith(":")]
    assert "[DONE]" not in data[:-1]
    done = data[-1:] == ["[DONE]"]
    return [json.loads(each) for each in data[: len(data) - done]], done


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """A choice's text, of either route."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)
