"""Text for the lab model: what is held out stays apart, tasks have their answers, the tokenizer loses nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from lab.chat import SPECIAL, TEMPLATE, written
from lab.copying import SENTENCE, TASKS, copying_chats, fenced, lines, pieces, quote, repeat, replace, scrambled
from lab.dialogue import conversations, whole_sentences
from lab.document import Document, read, write
from lab.sources import SOURCES, chapters, joined_lines
from lab.tokenizer import train
from tokenizers import Tokenizer

PASSAGE = 'The captain stood upon the deck. "Where is the lantern?" he asked. Nobody answered him. The wind rose, and rose.'
PROSE = [Document("prose", f"book/{number}", " ".join(f"{PASSAGE} Chapter {number} goes on for {n} days." for n in range(9)))
         for number in range(60)]


def test_repeated_passages_are_whole() -> None:
    question, answer = repeat(PASSAGE, random.Random(0))
    assert question.endswith(PASSAGE) and answer == PASSAGE


def test_quoted_sentences_are_of_the_passage() -> None:
    sentences = SENTENCE.split(PASSAGE)
    assert len(sentences) == 4
    for seed in range(20):
        question, answer = quote(PASSAGE, random.Random(seed))
        place = [word in question for word in ("the first", "the second", "the third", "the fourth")].index(True)
        assert answer == f'"{sentences[place]}"'


def test_edits_change_one_word_everywhere() -> None:
    for seed in range(20):
        question, answer = replace(PASSAGE, random.Random(seed))
        new, old = question.split('"')[1], question.split('"')[3]
        pairs = list(zip(PASSAGE.split(), answer.split(), strict=True))
        changed = [(before, after) for before, after in pairs if before != after]
        assert changed or new == old
        assert all(before.replace(old, new) == after for before, after in changed)
        assert old == new or not any(word.strip('.,"?') == old for word in answer.split())


def test_lines_are_the_sentences() -> None:
    _, answer = lines(PASSAGE, random.Random(0))
    assert [line.removeprefix("- ") for line in answer.split("\n")] == SENTENCE.split(PASSAGE)


def test_scrambled_words_are_the_passage_s_in_another_order() -> None:
    question, answer = scrambled(PASSAGE, random.Random(0))
    assert question.endswith(answer) and answer != PASSAGE and sorted(answer.split()) == sorted(PASSAGE.split())


def test_pieces_of_code_are_whole_lines() -> None:
    rows = [f"def function_{n}(x):" if n % 2 else f"    return x + {n}" for n in range(60)]
    found = list(pieces("\n".join(rows), random.Random(0), 30))
    assert len(found) > 20
    for piece in found:
        assert set(piece.split("\n")) <= {*rows, *(row.strip() for row in rows)} and len(piece) <= 900
        question, answer = fenced(piece, random.Random(0))
        assert question.endswith(answer) and answer == f"```python\n{piece}\n```"
    assert not list(pieces("too short", random.Random(0), 5))


def test_code_is_copied_too() -> None:
    code = Document("code", "module/a", "\n".join(f"value_{n} = compute({n}, 'abc')" for n in range(100)))
    chats = copying_chats([*PROSE, code], 400)
    of_code = [chat for chat in chats if chat.of == code.name]
    assert 50 < len(of_code) <= 100 and all("```python" in chat.text for chat in of_code)
    assert len({chat.name for chat in chats}) == len(chats)


@pytest.mark.parametrize(("text", "ended", "expected"), [
    ("All of it, without a stop", True, "All of it, without a stop"),
    ("One sentence. Another one! And then it was", False, "One sentence. Another one!"),
    ("1. A list\n2. Its second item\n3. Th", False, "1. A list\n2. Its second item"),
    ("He said \"so.\" Then", False, "He said \"so.\""),
    ("no stop at all", False, None),
    ("  ", True, None),
])
def test_answers_that_were_cut_off_end_with_a_sentence(text: str, ended: bool, expected: str | None) -> None:
    assert whole_sentences(text, ended) == expected


def test_what_is_made_of_a_held_out_text_is_held_out() -> None:
    chats = copying_chats(PROSE, 300)
    held_out = {document.name for document in PROSE if document.held_out}
    assert held_out and len(held_out) < len(PROSE) / 4
    assert {chat.of for chat in chats if chat.held_out} == held_out & {chat.of for chat in chats}
    assert chats == copying_chats(PROSE, 300)
    assert len({task.__name__ for task in TASKS}) == 6


def test_conversations_have_two_turns_and_only_whole_answers() -> None:
    asked: list[str] = []

    def write_answers(prompts: Sequence[str]) -> list[str | None]:
        asked.extend(prompts)
        return [None if number % 5 == 0 else f"Answer {number}." for number in range(len(prompts))]

    chats = conversations(PROSE, 50, write_answers)
    assert len(asked) == 50 + 40 and len(chats) == 32
    for chat in chats:
        assert chat.text.count("<|im_start|>user\n") == chat.text.count("<|im_start|>assistant\nAnswer") == 2
    assert {chat.of for chat in chats} > {None}


def test_the_template_writes_what_was_learned() -> None:
    environment = ImmutableSandboxedEnvironment()
    turns = ["Hello there", "Hello.\n", "Go on", "On."]
    messages = [{"role": ("user", "assistant")[n % 2], "content": turn} for n, turn in enumerate(turns)]
    template = environment.from_string(TEMPLATE)
    assert template.render(messages=messages) == written(turns)
    assert template.render(messages=messages[:3], add_generation_prompt=True) == written(turns[:3]) + "<|im_start|>assistant\n"


def test_documents_survive_their_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("text") / "a" / "text.jsonl"
    documents = [Document("prose", "a", "Ünïcode\n\u2028 and\x00 more"), Document("copy", "b", "", of="a")]
    assert write(path, documents) == len(documents[0].text)
    assert list(read(path)) == documents


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train(iter([document.text for document in PROSE]), 400)


@given(text=st.text())
def test_tokens_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_special_tokens_are_single(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(written(["Hi", "there"])).ids
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == [0, 1, 2, 3]
    assert ids.count(1) == 2 and ids.count(2) == 2


def test_chapters_and_paragraphs() -> None:
    long, short = ["It was a", "dark night.", ""] * 80, ["Short."]
    text = ["CHAPTER 1", "", *long, "CHAPTER 2", *short, "CHAPTER 3", *["Word after word."] * 90]
    found = list(chapters(text))
    assert [chapter[:9] for chapter in found] == ["CHAPTER 1", "CHAPTER 3"]
    assert joined_lines("a\nb\r\n\r\n c  d\n") == "a b\n\nc d"


def test_every_source_has_a_licence_and_a_version() -> None:
    assert all(source.licence in ("public domain", "PSF") for source in SOURCES)
    assert all(source.package is None or source.package.version for source in SOURCES)


def test_modules_of_this_python_are_found() -> None:
    standard = next(source for source in SOURCES if source.package is None)
    names = {document.name for document in standard.documents(__import__("pathlib").Path(__import__("os").__file__).parent)}
    assert {"python/argparse.py", "python/json/decoder.py"} <= names
    assert not any("site-packages" in name for name in names)
