"""Prompts from texts that a model has not learned: a conversation up to a turn of the assistant, any other text its beginning.

A file has a JSON object a line, with the text, its kind, and for people a name: as the lab model's recipe writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.engine.tokenizer import Tokenizer
from headrace.errors import ConfigError

ASSISTANT = "<|im_start|>assistant\n"
PIECE_TOKENS, BEGINNING_TOKENS = 512, 128
"""A long text is several: each piece of it begins with a prompt."""


@dataclass(frozen=True, slots=True)
class Text:
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """tokens: of a text of this kind, from where a model is to go on."""

    kind: str
    tokens: tuple[int, ...]


def read_texts(paths: Sequence[str]) -> list[Text]:
    """Of files, and of each folder's `held-out-*.jsonl`. Raises ConfigError naming what cannot be read."""
    return [text for file in _files(paths) for text in _texts(file)]


def _files(paths: Sequence[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        found = sorted(path.glob("held-out-*.jsonl")) if path.is_dir() else [path]
        if not found:
            raise ConfigError(f"{path} has no held-out-*.jsonl")
        yield from found


def _texts(file: Path) -> Iterator[Text]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None
    for number, line in enumerate(lines, 1):
        if line:
            try:
                entry = json.loads(line)
                yield Text(str(entry["kind"]), str(entry["text"]))
            except (ValueError, KeyError, TypeError):
                raise ConfigError(f"{file}, line {number}: not an object with a kind and a text") from None


def prompts(texts: Iterable[Text], tokenizer: Tokenizer, count: int, longest: int) -> list[TextPrompt]:
    """For each kind up to `count` prompts of at most `longest` tokens, from all over its texts; kinds by name."""
    by_kind: dict[str, list[TextPrompt]] = {}
    for text in texts:
        found = by_kind.setdefault(text.kind, [])
        found += (prompt for prompt in _of(text, tokenizer) if 0 < len(prompt.tokens) <= longest)
    return [prompt for _, found in sorted(by_kind.items()) for prompt in spread(found, count)]


def spread(found: Sequence[TextPrompt], count: int) -> list[TextPrompt]:
    """`count` of them, evenly apart; all if there are fewer."""
    return [found[place * len(found) // count] for place in range(count)] if count < len(found) else list(found)


def _of(text: Text, tokenizer: Tokenizer) -> Iterator[TextPrompt]:
    if ASSISTANT in text.text:
        said = text.text.split(ASSISTANT)
        for turn in range(1, len(said)):
            yield TextPrompt(text.kind, tuple(tokenizer.encode(ASSISTANT.join(said[:turn]) + ASSISTANT)))
        return
    tokens = tokenizer.encode(text.text)
    for start in range(0, len(tokens) - BEGINNING_TOKENS, PIECE_TOKENS):
        yield TextPrompt(text.kind, tuple(tokens[start : start + BEGINNING_TOKENS]))
