"""Ten turns of a real chat over HTTP: each goes on from what is cached, and drafts are as good as in a cold run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.server_process import ServerProcess

from headrace.bench.held_out import Text

TURNS, ANSWER = 10, 16
GENERATION_TOKENS = 4
"""What the template puts behind the last message, for the answer to follow."""
FLAGS = (
    "--device", "cpu", "--dtype", "float64", "--max-seqs", "2", "--context", "1024", "--cache-bytes", "200000000",
    "--gpu-checkpoint-bytes", "100000000",
)
DRAFTERS = {"mtp": ("--draft-tokens", "4"), "dflash": ()}
COUNTED = re.compile(r"^headrace_((?:drafted|accepted)_tokens_total{.*}) (\S+)$", re.MULTILINE)
QUESTION = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", re.DOTALL)


@dataclass(frozen=True)
class Answer:
    """drafts: of the answer, made and accepted ones by their number in a row."""

    text: str
    prompt: int
    cached: int
    completion: int
    drafts: Counter[str]


class Server:
    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, messages: list[dict[str, str]], seed: int, cache: bool) -> Answer:
        body: dict[str, Any] = {
            "messages": messages, "max_tokens": ANSWER, "temperature": 1.0, "seed": seed, "cache_prompt": cache,
        }
        before = self._drafts()
        answer = httpx.post(f"{self._url}/v1/chat/completions", json=body, timeout=120).raise_for_status().json()
        drafts, usage = self._drafts(), answer["usage"]
        drafts.subtract(before)
        return Answer(
            answer["choices"][0]["message"]["content"], usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"], +drafts,
        )

    def _drafts(self) -> Counter[str]:
        """Made and accepted, by their number in a row."""
        found = COUNTED.findall(httpx.get(f"{self._url}/metrics", timeout=20).text)
        return Counter({name: int(float(count)) for name, count in found})


@pytest.fixture(params=DRAFTERS)
def server(request: pytest.FixtureRequest, lab_model: Path, tmp_path: Path) -> Iterator[Server]:
    flags = (*FLAGS, "--speculate", request.param, *DRAFTERS[request.param])
    with ServerProcess(lab_model, *flags, log=tmp_path / "log") as process:
        yield Server(process.url)


@pytest.fixture(scope="module")
def questions(texts: list[Text]) -> list[str]:
    found = [question for text in texts if text.kind == "chat" for question in QUESTION.findall(text.text)]
    short = [question for question in found if len(question) < 120]
    assert len(short) >= TURNS
    return short[:TURNS]


def test_ten_turns(server: Server, questions: list[str]) -> None:
    messages: list[dict[str, str]] = []
    before, accepted = None, 0
    for number, question in enumerate(questions):
        messages.append({"role": "user", "content": question})
        cold, warm = server.ask(messages, number, cache=False), server.ask(messages, number, cache=True)
        assert cold.cached == 0
        if before is not None:
            assert warm.cached >= before.prompt - GENERATION_TOKENS
        assert (warm.text, warm.completion) == (cold.text, cold.completion)
        assert warm.drafts == cold.drafts
        messages.append({"role": "assistant", "content": warm.text})
        before, accepted = warm, accepted + sum(n for name, n in warm.drafts.items() if name.startswith("accepted"))
    assert before is not None and before.prompt > 200 and accepted > TURNS
