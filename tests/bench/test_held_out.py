"""Prompts from held-out texts: where they end, how many there are, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.bench.held_out import BEGINNING_TOKENS, PIECE_TOKENS, Text, TextPrompt, prompts, read_texts, spread
from headrace.engine.tokenizer import Tokenizer
from headrace.errors import ConfigError

CHAT = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n<|im_start|>user\nSo?<|im_end|>\n" \
    "<|im_start|>assistant\nNo<|im_end|>\n"


def test_a_conversation_is_a_prompt_for_each_turn_of_the_assistant(tokenizer: Tokenizer) -> None:
    first, second = prompts([Text("chat", CHAT)], tokenizer, 9, 1000)
    assert tokenizer.decode(first.tokens, skip_special=False) == CHAT[: CHAT.index("Yes")]
    assert tokenizer.decode(second.tokens, skip_special=False) == CHAT[: CHAT.index("No<")]
    assert {first.kind, second.kind} == {"chat"} and first.tokens.count(1) == 2
    assert prompts([Text("chat", CHAT)], tokenizer, 9, len(first.tokens)) == [first]


def test_other_texts_begin_with_their_prompts(tokenizer: Tokenizer) -> None:
    text = "".join(chr(65 + number % 26) for number in range(2 * PIECE_TOKENS + BEGINNING_TOKENS))
    found = prompts([Text("prose", text), Text("prose", "too short")], tokenizer, 9, 1000)
    assert [tokenizer.decode(prompt.tokens) for prompt in found] == [
        text[start : start + BEGINNING_TOKENS] for start in (0, PIECE_TOKENS)
    ]
    long = [Text(kind, text * 4) for kind in ("prose", "code")]
    assert [prompt.kind for prompt in prompts(long, tokenizer, 2, 1000)] == ["code", "code", "prose", "prose"]


def test_a_few_are_from_everywhere() -> None:
    every = [TextPrompt("prose", (number,)) for number in range(10)]
    assert [prompt.tokens for prompt in spread(every, 4)] == [(0,), (2,), (5,), (7,)] and spread(every, 10) == every


def test_files_and_folders_are_read(tmp_path: Path) -> None:
    for name, text in (("held-out-b.jsonl", "two"), ("held-out-a.jsonl", "one\u2028line"), ("train-a.jsonl", "not this")):
        (tmp_path / name).write_text(json.dumps({"kind": name[9], "name": "x", "text": text}, ensure_ascii=False) + "\n")
    assert read_texts([str(tmp_path)]) == [Text("a", "one\u2028line"), Text("b", "two")]
    assert read_texts([str(tmp_path / "held-out-b.jsonl")] * 2) == [Text("b", "two")] * 2


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"kind": "prose"}', "line 1: not an object"), ("[]", "line 1"), ('{"kind": "a", "text": "b"}\n{', "line 2"),
        (None, "such"),
    ],
)
def test_what_is_no_such_file_is_named(content: str | None, why: str, tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=f"texts.jsonl.*{why}"):
        read_texts([str(file)])
    with pytest.raises(ConfigError, match="has no held-out"):
        read_texts([str(tmp_path)])
