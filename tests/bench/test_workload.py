from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from headrace.bench.prose import prose, question
from headrace.bench.workload import (
    CHAT,
    COMPLETIONS,
    Chats,
    Conversation,
    Lengths,
    PromptFile,
    TokenIds,
    Turn,
    WarmUp,
    Workload,
    conversations,
)
from headrace.errors import ConfigError

IDS = Lengths(1000, 1999)


def random_ids(seed: str, **given: int) -> TokenIds:
    return TokenIds(seed, Lengths(5, 9), Lengths(2, 4), IDS, **given)


def chats(seed: str, **given: int) -> Chats:
    return Chats(seed, 3, Lengths(12, 40), Lengths(2, 4), **given)


@pytest.mark.parametrize("make", [random_ids, chats, lambda seed: random_ids(seed, prefix_tokens=7, groups=2),
                                  lambda seed: chats(seed, document_words=30), lambda seed: WarmUp(Lengths(1, 9))])
def test_a_seed_replays_and_another_one_does_not(make: type[Workload]) -> None:
    def bodies(seed: str, count: int) -> list[object]:
        return [made.body([]) for made in conversations(make(seed), seed, count)]

    assert bodies("1", 6) == bodies("1", 6)
    assert bodies("1", 6) == bodies("1", 9)[:6], "more requests begin with the same ones"
    first, second = bodies("1", 20), bodies("2", 20)
    assert not [body for body in first if body in second]


def test_random_ids_have_the_lengths_and_the_range_asked_for() -> None:
    made = conversations(random_ids("0"), "0", 300)
    fields = [each.turns[0].fields for each in made]
    assert {each.path for each in made} == {COMPLETIONS} and {len(each.turns) for each in made} == {1}
    assert {len(each["prompt"]) for each in fields} == {5, 6, 7, 8, 9}
    assert {each["max_tokens"] for each in fields} == {2, 3, 4}
    drawn = Counter(token for each in fields for token in each["prompt"])
    assert min(drawn) >= 1000 and max(drawn) <= 1999 and len(drawn) > 700


def test_prefixes_are_shared_within_a_group_only() -> None:
    made = conversations(random_ids("0", prefix_tokens=7, groups=3), "0", 12)
    prompts = [each.turns[0].fields["prompt"] for each in made]
    prefixes = [tuple(prompt[:7]) for prompt in prompts]
    assert prefixes == prefixes[:3] * 4 and len(set(prefixes)) == 3
    assert len({tuple(prompt[7:]) for prompt in prompts}) == 12
    assert {len(prompt) - 7 for prompt in prompts} <= {5, 6, 7, 8, 9}


def test_chats_go_on_from_the_answers() -> None:
    talk, other = conversations(chats("0", document_words=30), "0", 2)
    assert talk.path == CHAT and len(talk.turns) == 3
    first = talk.body([])["messages"]
    third = talk.body(["one", "two"])["messages"]
    assert [message["role"] for message in third] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert third[:2] == first and third[2]["content"] == "one" and third[4]["content"] == "two"
    assert len({message["content"] for message in third}) == 6
    assert first[0] == other.body([])["messages"][0], "one document"
    assert 2 <= talk.body([])["max_tokens"] <= 4


def test_prose_has_the_words_asked_for() -> None:
    for words in (0, 1, 17, 400):
        assert len(prose(random.Random(words), words).split()) == words
    assert len(question(random.Random(0), 100).split()) == 100
    assert question(random.Random(0), 1)[-1] in ".?s"


def test_prompts_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "a"}, {"messages": [{"role": "user", "content": "b"}], "max_tokens": 3, "top_k": 5}, {"prompt": [1, 2]}]
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    made = conversations(PromptFile.read(file, Lengths(7, 7)), "0", 5)
    assert [each.path for each in made] == [COMPLETIONS, CHAT, COMPLETIONS, COMPLETIONS, CHAT]
    assert [each.body([]) for each in made[:3]] == [
        {"prompt": "a", "max_tokens": 7}, {**lines[1]}, {"prompt": [1, 2], "max_tokens": 7},
    ]  # fmt: skip
    assert made[3].body([]) == made[0].body([])


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "no prompts"), ('{"prompt": "a"}\n{', "line 2"), ("[]", "line 1"), ("{}", '"prompt" or "messages"'),
     ('{"prompt": "a", "messages": [{}]}', "either"), ('{"messages": []}', "either")],
)  # fmt: skip
def test_files_that_are_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        PromptFile.read(file, Lengths(1, 1))
    with pytest.raises(ConfigError, match="nothing.jsonl"):
        PromptFile.read(tmp_path / "nothing.jsonl", Lengths(1, 1))


@pytest.mark.parametrize(("text", "lengths"), [("5", Lengths(5, 5)), ("5-9", Lengths(5, 9)), ("9-9", Lengths(9, 9))])
def test_lengths(text: str, lengths: Lengths) -> None:
    assert Lengths.of(text, "--input-tokens") == lengths


@pytest.mark.parametrize("text", ["", "0", "-5", "9-5", "a", "1-b", "1-2-3", "1.5"])
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--input-tokens must be"):
        Lengths.of(text, "--input-tokens")


def test_a_conversation_without_messages_is_its_fields() -> None:
    assert Conversation(COMPLETIONS, (Turn({"prompt": "a"}), Turn({"prompt": "b"}))).body(["x"]) == {"prompt": "b"}
