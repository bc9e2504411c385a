"""Stage 2: `python -m lab.dialogue --work DIR` has the demo model (SmolLM2-135M-Instruct, Apache-2.0) write conversations.

Questions are made here, of topics and of passages from the prose; answers are the model's, and a second question follows each.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from headrace import SamplingParams
from lab.chat import END, START, WARMTH, written
from lab.copying import passages
from lab.document import Document, read
from lab.engines import Engines
from lab.text import write_parts

TOPICS = (
    "the sea", "whales", "the moon", "bread", "mountains", "a lighthouse", "honesty", "rain", "a lost letter", "bees",
    "gravity", "the seasons", "old books", "trains", "friendship", "maps", "a garden in winter", "salt", "the number zero",
    "birds", "a long journey", "music", "volcanoes", "the history of writing", "glass", "clocks", "a village school",
    "rivers", "tea", "the stars", "courage", "sleep", "bridges", "a stubborn donkey", "paper", "the wind", "forests",
    "a market day", "ice", "sailing ships", "memory", "laws", "elections", "taxes", "farming", "railways", "newspapers",
    "peace", "iron", "coffee", "chess", "horses", "cities", "lists in Python", "functions", "loops", "sorting",
    "dictionaries in Python", "files", "errors", "testing a program", "recursion", "strings", "classes in Python",
    "marriage", "pride", "a country house", "letters", "dancing",
)
ABOUT_A_TOPIC = (
    "Tell me about {}.", "What should I know about {}?", "Write a short story about {}.", "Give me five facts about {}.",
    "Explain {} to a child.", "Write a poem about {}.", "Why does {} matter?", "What are common mistakes people make about {}?",
    "Describe {} in three sentences.", "I am writing an essay on {}. How should I begin?",
    "What questions could I ask about {}?",
)
ABOUT_A_PASSAGE = (
    "Summarise this passage in two sentences:\n\n{}", "What is this passage about?\n\n{}", "Continue this text:\n\n{}",
    "Rewrite this passage in plain English:\n\n{}", "Which words in this passage are unusual, and what do they mean?\n\n{}",
)
FOLLOW_UPS = (
    "Can you say that more briefly?", "Give me an example.", "Tell me more.", "Now say it in one sentence.", "Why?",
    "What would be a good title?", "Please explain the first point again.", "Repeat the most important part of your answer.",
    "Is there another side to it?", "Write your answer as a list.", "Thank you. What should I ask next?",
)


class Writer(Protocol):
    """The answer to each prompt, whole sentences; None where there is none."""

    def __call__(self, prompts: Sequence[str]) -> list[str | None]: ...


def questions(prose: Sequence[Document], count: int, pick: random.Random) -> Iterator[tuple[str, str | None]]:
    """First questions, and the document of the passage that is in one."""
    for _ in range(count):
        document = pick.choice(prose)
        passage = next(passages(document.text, pick, 1), None) if pick.random() < 0.5 else None
        if passage is None:
            yield pick.choice(ABOUT_A_TOPIC).format(pick.choice(TOPICS)), None
        else:
            yield pick.choice(ABOUT_A_PASSAGE).format(passage), document.name


def conversations(prose: Sequence[Document], count: int, write: Writer, seed: int = 2) -> list[Document]:
    """Two turns each; what the writer did not end is left out."""
    pick = random.Random(seed)
    asked = list(questions(prose, count, pick))
    turns, of = [[question] for question, _ in asked], [name for _, name in asked]
    for turn in range(2):
        prompts = [written(said) + f"{START}assistant\n" for said in turns]
        kept = [(said, name, answer) for said, name, answer in zip(turns, of, write(prompts), strict=True) if answer]
        turns = [[*said, answer, *([pick.choice(FOLLOW_UPS)] if turn == 0 else [])] for said, _, answer in kept]
        of = [name for _, name, _ in kept]
    return [Document("chat", f"chat-{seed}/{number}", written(said), of=name)
            for number, (said, name) in enumerate(zip(turns, of, strict=True))]


LAST_SENTENCE = re.compile(r".*[A-Za-z)\"'][.!?][\"')]?(?=\s|$)|.*\n", re.DOTALL)  # not behind the number of a list's item


def whole_sentences(text: str, ended: bool) -> str | None:
    """An answer that was cut off goes to its last whole sentence, or line; None if nothing is left."""
    if not ended:
        found = LAST_SENTENCE.match(text)
        text = found[0] if found else ""
    return text.strip() or None


def demo_writer(engines: Engines, most: int, seed: int, seconds: float | None = None) -> Writer:
    """The demo model. most: tokens of an answer; seconds: for all that are asked at a time: what was not begun has none."""
    def write(prompts: Sequence[str]) -> list[str | None]:
        params = [SamplingParams(max_tokens=most, temperature=WARMTH, top_p=0.9, stop=(END,), seed=seed + number)
                  for number in range(len(prompts))]
        return [answer and whole_sentences(answer.text, answer.ended) for answer in engines(prompts, params, seconds)]

    return write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--count", type=int, default=12_000)
    parser.add_argument("--tokens", type=int, default=256, help="longest answer")
    parser.add_argument("--engines", type=int, default=6, help="processes that write at once")
    parser.add_argument("--seconds", type=float, help="for the answers to all first questions, and as long for the second ones")
    options = parser.parse_args()
    prose = list(read(options.work / "train-prose.jsonl")) + list(read(options.work / "held-out-prose.jsonl"))
    with Engines(None, options.engines, dtype="bfloat16", max_seqs=64, context=2048, cache_bytes=4 * 2**30) as engines:
        writer = demo_writer(engines, options.tokens, 0, options.seconds)
        write_parts(options.work, conversations(prose, options.count, writer))


if __name__ == "__main__":
    main()
