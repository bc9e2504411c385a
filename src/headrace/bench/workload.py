"""What is asked: conversations of one request or several, each a function of the seed and its number alone.

So the same seed asks the same again, and more requests begin with the same ones.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.bench.prose import prose, question
from headrace.errors import ConfigError

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Whole numbers from `least` to `most`, all equally likely."""

    least: int
    most: int

    @classmethod
    def of(cls, text: str, flag: str) -> Lengths:
        """From "512" or "256-1024". Raises ConfigError naming `flag`."""
        least, _, most = text.partition("-")
        try:
            lengths = cls(int(least), int(most or least))
        except ValueError:
            lengths = cls(0, 0)
        if not 1 <= lengths.least <= lengths.most:
            raise ConfigError(f"{flag} must be a number like 512, or a range like 256-1024, not {text!r}")
        return lengths

    def draw(self, source: random.Random) -> int:
        return source.randint(self.least, self.most)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: `fields` of its body, and for a chat the message that it adds to those before it."""

    fields: Mapping[str, Any]
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Requests one after the other, each with the answers to those before it. messages: what a chat begins with."""

    path: str
    turns: tuple[Turn, ...]
    messages: tuple[Mapping[str, Any], ...] = ()

    def body(self, answers: Sequence[str]) -> dict[str, Any]:
        """Of the request that follows `answers`."""
        turn = self.turns[len(answers)]
        if self.path != CHAT:
            return dict(turn.fields)
        messages = list(self.messages)
        for said, answer in zip(self.turns, answers, strict=False):
            messages += [{"role": "user", "content": said.message}, {"role": "assistant", "content": answer}]
        if turn.message is not None:
            messages.append({"role": "user", "content": turn.message})
        return {**turn.fields, "messages": messages}


Workload = Callable[[random.Random, int], Conversation]
"""Makes conversation number n, from a source of its own."""


def conversations(workload: Workload, seed: str, count: int) -> list[Conversation]:
    """The first `count` of them. Different seeds give different ones, and different prefixes."""
    return [workload(random.Random(f"{seed}/{number}"), number) for number in range(count)]


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Random token ids, so that lengths are exact: `inputs` of its own after one of `groups` common prefixes."""

    seed: str
    inputs: Lengths
    outputs: Lengths
    ids: Lengths
    prefix_tokens: int = 0
    groups: int = 1

    def __call__(self, source: random.Random, number: int) -> Conversation:
        prefix = self._draw(random.Random(f"{self.seed}/prefix/{number % self.groups}"), self.prefix_tokens)
        own = self._draw(source, self.inputs.draw(source))
        return Conversation(COMPLETIONS, (Turn({"prompt": prefix + own, "max_tokens": self.outputs.draw(source)}),))

    def _draw(self, source: random.Random, count: int) -> list[int]:
        return source.choices(range(self.ids.least, self.ids.most + 1), k=count)


@dataclass(frozen=True, slots=True)
class Chats:
    """Made-up conversations of `turns` questions about a made-up document, which `groups` of them have in common.

    Lengths are in words here; what they came to in tokens, the server says.
    """

    seed: str
    turns: int
    inputs: Lengths
    outputs: Lengths
    document_words: int = 0
    groups: int = 1

    def __call__(self, source: random.Random, number: int) -> Conversation:
        turns = tuple(self._turn(source) for _ in range(self.turns))
        if not self.document_words:
            return Conversation(CHAT, turns)
        document = prose(random.Random(f"{self.seed}/document/{number % self.groups}"), self.document_words)
        return Conversation(CHAT, turns, ({"role": "system", "content": document},))

    def _turn(self, source: random.Random) -> Turn:
        return Turn({"max_tokens": self.outputs.draw(source)}, question(source, self.inputs.draw(source)))


@dataclass(frozen=True, slots=True)
class PromptFile:
    """Lines of a file in their order, from the first again when there are no more.

    A line is a JSON object with "prompt" (text or token ids) or "messages", and any other fields of a request's body.
    """

    lines: tuple[Mapping[str, Any], ...]
    outputs: Lengths

    @classmethod
    def read(cls, path: Path, outputs: Lengths) -> PromptFile:
        """Raises ConfigError naming the file and the line."""
        try:
            texts = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--prompts {path}: {error}") from None
        lines = tuple(_line(text, f"--prompts {path}, line {at}") for at, text in enumerate(texts, 1) if text.strip())
        if not lines:
            raise ConfigError(f"--prompts {path}: the file has no prompts")
        return cls(lines, outputs)

    def __call__(self, source: random.Random, number: int) -> Conversation:
        fields = {"max_tokens": self.outputs.draw(source), **self.lines[number % len(self.lines)]}
        messages = tuple(fields.pop("messages", ()))
        return Conversation(CHAT if messages else COMPLETIONS, (Turn(fields),), messages)


def _line(text: str, where: str) -> Mapping[str, Any]:
    try:
        line = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not isinstance(line, dict) or ("prompt" in line) == bool(line.get("messages")):
        raise ConfigError(f'{where}: it must be an object with either "prompt" or "messages"')
    return line


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Made-up text, where a workload's own prompts would be in the server's cache afterwards."""

    outputs: Lengths

    def __call__(self, source: random.Random, number: int) -> Conversation:
        return Conversation(COMPLETIONS, (Turn({"prompt": question(source, 64), "max_tokens": self.outputs.draw(source)}),))
