"""Conversations over HTTP: every turn computes what is new in it, and answers what it would without a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.server_process import ServerProcess
from tests.support.tiny import make_tiny_checkpoint

from headrace.engine.chat import ChatTemplate
from headrace.engine.tokenizer import Tokenizer, load_tokenizer

TEMPLATES = Path(__file__).parents[1] / "support" / "templates"
TURNS, ANSWER = 10, 12
FLAGS = ("--device", "cpu", "--dtype", "float64", "--max-seqs", "3", "--context", "1000", "--chunk-tokens", "48")
LETTERS = "qzxj"
"""They are in no merge: their text is tokenized as they were generated."""


@dataclass
class Turn:
    prompt: list[int]
    text: str
    cached: int
    completion: int


class Chats:
    """A server with the cache, and one without, of one template."""

    def __init__(self, checkpoint: Path, template: str, kept: str, bare: str) -> None:
        self.tokenizer: Tokenizer = load_tokenizer(checkpoint)
        self.template = ChatTemplate((TEMPLATES / f"{template}.jinja").read_text(), self.tokenizer)
        self.rewrites = template == "hybrid"
        self.kept, self.bare = kept, bare
        self.bias = {str(self.tokenizer.encode(letter, add_special=False)[0]): 100 for letter in LETTERS}

    def turns(self, reasoning: str | None) -> list[Turn]:
        """Ten turns; reasoning: what the client says that an answer's was, if anything."""
        messages: list[dict[str, Any]] = [{"role": "system", "content": "Answer in the letters that you know."}]
        made = []
        for number in range(TURNS):
            messages.append({"role": "user", "content": f"and the {number} of them " * (1 + number % 3)})
            body = {"messages": messages, "max_tokens": ANSWER, "temperature": 0.9, "seed": number, "logit_bias": self.bias}
            answer = self._ask(self.kept, body)
            usage, text = answer["usage"], answer["choices"][0]["message"]
            assert text == self._ask(self.bare, body)["choices"][0]["message"]
            prompt = self.template.encode(messages, add_generation_prompt=True)
            said = text.get("content") or text["reasoning_content"]
            made.append(Turn(prompt, said, usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]))
            assert usage["prompt_tokens"] == len(prompt)
            messages.append({"role": "assistant", "content": said, **({"reasoning_content": reasoning} if reasoning else {})})
        return made

    @staticmethod
    def _ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).raise_for_status().json()
        return answer


@pytest.fixture(params=[("qwen3_5_text", "chatml"), ("qwen3_5_text", "hybrid"), ("llama", "chatml")], ids="-".join)
def chats(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Chats]:
    model, template = request.param
    checkpoint = make_tiny_checkpoint(tmp_path / "model", model, seed=5)
    flags = (*FLAGS, "--chat-template", str(TEMPLATES / f"{template}.jinja"))
    with ServerProcess(checkpoint, *flags, log=tmp_path / "kept") as kept:
        with ServerProcess(checkpoint, *flags, "--prefix-cache", "off", log=tmp_path / "bare") as bare:
            yield Chats(checkpoint, template, kept.url, bare.url)


def test_ten_turns(chats: Chats) -> None:
    """A template that only appends: all but what is new. One that drops earlier reasoning: up to the last message before it."""
    turns = chats.turns("he thought of it" if chats.rewrites else None)
    assert turns[0].cached == 0 and len(turns[-1].prompt) > 300
    end = chats.tokenizer.eos_ids[0]
    for before, turn in pairwise(turns):
        if chats.rewrites:
            boundary = len(before.prompt) - before.prompt[::-1].index(end)
            assert turn.prompt[:boundary] == before.prompt[:boundary] and turn.prompt[: len(before.prompt)] != before.prompt
            assert turn.cached >= boundary
        else:
            assert turn.prompt[: len(before.prompt)] == before.prompt
            assert turn.cached >= len(before.prompt) + before.completion - 1
