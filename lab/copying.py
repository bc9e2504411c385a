"""Conversations in which the answer is in the question: text, code or words are repeated, quoted, listed or edited."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence

from lab.chat import written
from lab.document import Document

SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'])")
WORD = re.compile(r"[A-Za-z]{5,}")
Turns = list[str]

REPEAT = (
    "Repeat this passage word for word:", "Please copy the following text exactly:", "Say this back to me, unchanged:",
    "Write out the following once more:",
)


def repeat(passage: str, pick: random.Random) -> Turns:
    return [f"{pick.choice(REPEAT)}\n\n{passage}", passage]


def quote(passage: str, pick: random.Random) -> Turns:
    sentences = SENTENCE.split(passage)
    number = pick.randrange(len(sentences))
    ordinal = ("first", "second", "third", "fourth", "fifth")[number] if number < 5 else "last"
    chosen = sentences[number if number < 5 else -1]
    return [f"{passage}\n\nQuote the {ordinal} sentence of this passage.", f'"{chosen}"']


def replace(passage: str, pick: random.Random) -> Turns:
    """One word for another, the rest as it was."""
    old, new = pick.choice(WORD.findall(passage)), pick.choice(("river", "lantern", "captain", "harbour", "window", "garden"))
    edited = re.sub(rf"\b{old}\b", new, passage)
    return [f'Edit this passage: write "{new}" wherever it says "{old}", and change nothing else.\n\n{passage}', edited]


def lines(passage: str, pick: random.Random) -> Turns:
    sentences = SENTENCE.split(passage)
    return [f"Put each sentence on a line of its own:\n\n{passage}", "\n".join(f"- {sentence}" for sentence in sentences)]


def repeat_twice(passage: str, pick: random.Random) -> Turns:
    return [f"{pick.choice(REPEAT)}\n\n{passage}", passage, "And once more, please.", passage]


def scrambled(passage: str, pick: random.Random) -> Turns:
    """Words in no order: nothing but the question says which one is next."""
    words = passage.split()
    pick.shuffle(words)
    return repeat(" ".join(words), pick)


def fenced(code: str, pick: random.Random) -> Turns:
    return repeat(f"```python\n{code}\n```", pick)


TASKS: tuple[Callable[[str, random.Random], Turns], ...] = (
    repeat, repeat, quote, replace, lines, repeat_twice, scrambled,
)


def passages(text: str, pick: random.Random, count: int) -> Iterator[str]:
    """Up to `count` runs of one to six whole sentences, of at most 900 characters."""
    sentences = [sentence for sentence in SENTENCE.split(" ".join(text.split())) if 20 < len(sentence) < 400]
    for _ in range(count if len(sentences) > 6 else 0):
        start = pick.randrange(len(sentences) - 6)
        chosen = sentences[start : start + pick.randint(1, 6)]
        passage = " ".join(chosen)
        if len(passage) <= 900 and WORD.search(passage):
            yield passage


def pieces(code: str, pick: random.Random, count: int) -> Iterator[str]:
    """Up to `count` runs of three to twenty lines, of at most 900 characters."""
    rows = code.split("\n")
    for _ in range(count if len(rows) > 20 else 0):
        start = pick.randrange(len(rows) - 20)
        piece = "\n".join(rows[start : start + pick.randint(3, 20)]).strip("\n")
        if 40 < len(piece) <= 900 and "```" not in piece:
            yield piece


def copying_chats(documents: Sequence[Document], count: int, seed: int = 1) -> list[Document]:
    """About `count` conversations, three of four of passages of the prose and one of code, in documents' proportion."""
    pick = random.Random(seed)
    return [
        *_of_kind(documents, "prose", 3 * count // 4, passages, lambda passage: pick.choice(TASKS)(passage, pick), pick),
        *_of_kind(documents, "code", count // 4, pieces, lambda piece: fenced(piece, pick), pick),
    ]


def _of_kind(
    documents: Sequence[Document], kind: str, count: int, parts: Callable[[str, random.Random, int], Iterator[str]],
    task: Callable[[str], Turns], pick: random.Random,
) -> Iterator[Document]:
    found = [document for document in documents if document.kind == kind]
    total = sum(len(document.text) for document in found)
    for document in found:
        share = max(1, round(count * len(document.text) / total))
        for number, part in enumerate(parts(document.text, pick, share)):
            yield Document("copy", f"{document.name}#copy-{number}", written(task(part)), of=document.name)
